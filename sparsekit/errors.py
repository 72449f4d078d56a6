"""The kinds of failure, one exit code each.

Every message says what was wanted, what was found and what to do. The command line prints it
alone, without a traceback, and exits with the kind's code.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_INTERRUPTED = 130


def first_line(error: BaseException) -> str:
    """What somebody else's error says, on one line; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class SparsekitError(Exception):
    """A failure that the user can act on."""

    exit_code = EXIT_CHECK_FAILED


class UsageError(SparsekitError):
    """A reference, option or file that does not say what to do."""

    exit_code = 2


class ArgumentError(UsageError, ValueError):
    """A tensor or scalar argument of an operator that does not fit; also a ValueError."""


class NoKernelError(ArgumentError):
    """No kernel of those that may be taken serves a call that is right in itself."""


class TooLargeError(ArgumentError):
    """A case or a call that is right in itself and larger than what would run it takes."""


class ArgumentTypeError(UsageError, TypeError):
    """An argument of the wrong element type or kind; also a TypeError."""


class SpecError(SparsekitError):
    """A kernel folder whose spec.py, op.py or sources do not hold together."""

    exit_code = 3


class ToolchainError(SparsekitError):
    """A compiler or tool that is missing, too old, or does not know the target."""

    exit_code = 4


class MissingArtifactError(SparsekitError):
    """Something that would have to be built, where building was not allowed."""

    exit_code = 4


class CompileError(SparsekitError):
    """A compiler refused the source, or what it made must not be used."""

    exit_code = 5


class GpuError(SparsekitError):
    """No usable GPU or driver, or the driver refused a load or a launch."""

    exit_code = 6


class ContextLostError(GpuError):
    """A kernel faulted: nothing else can run on the device in this process."""


class StoreError(SparsekitError):
    """The artifact store cannot be used as it stands."""

    exit_code = 7


OF_ONE_KERNEL = (
    ArgumentError, ArgumentTypeError, CompileError, GpuError, SpecError, StoreError, ToolchainError,
)  # fmt: skip
"""What goes wrong with one kernel of several, and leaves the others to be looked at."""
