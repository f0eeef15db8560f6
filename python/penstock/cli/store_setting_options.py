"""The options of the data that outlives a request."""

from __future__ import annotations

from typing import Final

from penstock.cli.setting_option import SettingOption, in_panel

STORE_OPTIONS: Final = in_panel(
    "Storage",
    SettingOption(
        "url",
        ("--store",),
        str,
        "Database of responses, files and sessions: sqlite:///FILE or postgresql://...",
        "penstock.db in PENSTOCK_HOME",
    ),
    SettingOption(
        "blobs",
        ("--blobs",),
        str,
        "Folder or fsspec URL for the contents of files.",
        "blobs in PENSTOCK_HOME",
    ),
    SettingOption(
        "skills_dir",
        ("--skills-dir",),
        str,
        "Folder or fsspec URL for uploaded skills.",
        "as --blobs",
    ),
    SettingOption(
        "response_expiry_s",
        ("--response-expiry",),
        int,
        "Seconds that a response is kept; 0 keeps it until it is deleted.",
        "2592000, which is 30 days",
    ),
    SettingOption(
        "max_responses_bytes",
        ("--max-responses-bytes",),
        int,
        "Total size of responses; the oldest are deleted first.",
    ),
    SettingOption(
        "session_expiry_s",
        ("--session-expiry",),
        int,
        "Seconds that an unused session is kept.",
    ),
    SettingOption("max_sessions", ("--max-sessions",), int, "Number of sessions."),
    SettingOption(
        "max_sessions_bytes",
        ("--max-sessions-bytes",),
        int,
        "Total size of sessions; the oldest are deleted first.",
    ),
    SettingOption("file_expiry_s", ("--file-expiry",), int, "Seconds that a file is kept."),
    SettingOption("max_files", ("--max-files",), int, "Number of files."),
    SettingOption(
        "max_files_bytes",
        ("--max-files-bytes",),
        int,
        "Total size of files; the oldest are deleted first.",
    ),
    SettingOption(
        "max_skills_bytes",
        ("--max-skills-bytes",),
        int,
        "Total size of skills; an upload beyond it is refused.",
    ),
    SettingOption(
        "max_chats_bytes",
        ("--max-chats-bytes",),
        int,
        "Total size of the web page's chats; a message beyond it is refused.",
    ),
)
