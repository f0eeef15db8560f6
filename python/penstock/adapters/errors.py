"""The errors of the adapter routes: their codes and HTTP statuses."""

from __future__ import annotations

from typing import Final

from penstock.base.errors import ServiceError

STATUS_OF: Final = {
    "invalid_lora_name": 400,
    "invalid_adapter_path": 400,
    "invalid_adapter_file": 400,
    "invalid_lora_load_policy": 400,
    "adapter_path_forbidden": 403,
    "adapter_file_forbidden": 403,
    "adapter_path_not_found": 404,
    "adapter_file_not_found": 404,
    "lora_adapter_not_found": 404,
    "lora_runtime_unavailable": 409,
    "lora_alias_limit_exceeded": 409,
    "lora_adapter_already_loaded": 409,
    "lora_generation_mismatch": 409,
    "lora_rank_limit_exceeded": 409,
    "lora_adapter_limit_exceeded": 409,
    "lora_byte_limit_exceeded": 409,
    "adapter_file_changed": 409,
    "model_state_conflict": 409,
    "lora_adapter_file_too_large": 413,
    "invalid_lora_adapter": 422,
    "lora_load_busy": 429,
    "lora_load_task_failed": 500,
    "adapter_storage_unavailable": 503,
    "lora_storage_unavailable": 503,
    "lora_device_load_failed": 503,
}
BUSY_RETRY_S: Final = 1


class AdapterRefused(ServiceError):
    """The error for an adapter that cannot be loaded, replaced or unloaded. `code`: a key of
    STATUS_OF, which determines the HTTP status. The message contains no path of the server."""

    def __init__(self, code: str, message: str, *, field: str | None = None) -> None:
        self.status = STATUS_OF[code]
        self.kind = "server_error" if self.status >= 500 else "invalid_request_error"
        retry_after_s = BUSY_RETRY_S if self.status == 429 else None
        super().__init__(message, field=field, code=code, retry_after_s=retry_after_s)


def invalid_adapter(why: str) -> AdapterRefused:
    """Create the error for adapter files that are malformed or not supported."""
    return AdapterRefused("invalid_lora_adapter", why, field="lora_path")
