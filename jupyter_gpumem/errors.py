"""What can go wrong in a way a user can mend; each text is one line: what is wrong, what we got, what to do."""


class GpumemError(Exception):
    """Base of every error this package raises on purpose.

    The magics turn it into IPython's one-line `UsageError`; anything else is a bug and keeps its traceback.
    """


class UnavailableError(GpumemError):
    """The machine or its software cannot do what was asked for (no PyTorch, no such back end, no driver)."""


class DeviceNotFoundError(GpumemError):
    """A device was named that this process cannot see."""


class InvalidValueError(GpumemError):
    """A size, number or name could not be understood."""


class RecordingError(GpumemError):
    """A file is not a recording, or a recording cannot be used."""


class UnsafeSettingsError(GpumemError):
    """Allocator settings were changed in a way that would make PyTorch free memory under live tensors."""


class SettingsRefusedError(GpumemError):
    """A change of the allocator settings was refused, by us or by PyTorch; what was in force still is."""


class ShortOfMemoryError(GpumemError):
    """Memory could not be put aside: the card, or this process's cap, has too little left."""
