"""The names under which the model calls built-in tools, and the labels that people see."""

from __future__ import annotations

from typing import Final

from penstock.dialog.server_tools import ServerTool

EXECUTE_PYTHON: Final = ServerTool(
    "service_execute_python", "code_execution", "built_in", "Python code"
)
RESET_PYTHON: Final = ServerTool(
    "service_reset_python_session", "code_execution", "built_in", "Python code"
)
SHELL: Final = ServerTool("service_shell", "shell", "built_in", "Shell command")
SURFACE_OUTPUTS: Final = ServerTool("service_surface_outputs", "file", "built_in", "File outputs")
READ_FILE: Final = ServerTool("service_read_file", "file", "built_in", "File access")
LIST_FILES: Final = ServerTool("service_list_files", "file", "built_in", "File access")
SEARCH_THE_WEB: Final = ServerTool("service_search_the_web", "web_search", "built_in", "Web search")
EXTRACT_PAGE: Final = ServerTool(
    "service_website_content_extractor", "web_search", "built_in", "Web page extraction"
)
BUILT_IN: Final = (
    EXECUTE_PYTHON,
    RESET_PYTHON,
    SHELL,
    SURFACE_OUTPUTS,
    READ_FILE,
    LIST_FILES,
    SEARCH_THE_WEB,
    EXTRACT_PAGE,
)
