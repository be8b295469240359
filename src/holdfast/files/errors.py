"""Errors of files.

FileError
├── FileRefused        the caller is wrong, or has no room
├── FileMissing        the owner has no such file
└── FilesUnavailable   the file store does not answer, or is not the one where this database's files are: retry
"""


class FileError(Exception):
    """`code` is stable; `message` is a sentence for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class FileRefused(FileError):
    """Nothing was stored."""


class FileMissing(FileError):
    def __init__(self, file_id: str) -> None:
        super().__init__("file_not_found", f"There is no file {file_id}.")


class FilesUnavailable(FileError):
    """The message names folders and hosts: it is for the operator."""

    def __init__(self, message: str, *, code: str = "files_unavailable") -> None:
        super().__init__(code, message)
