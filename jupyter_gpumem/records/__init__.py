"""The facts this package passes around: frozen, in bytes and seconds, `None` where something is not known."""

from .acting import (
    AllocatorConfig,
    DeviceEmptied,
    DeviceLimit,
    Emptied,
    Limits,
    Pin,
    Reservation,
    Reservations,
    Setting,
    SettingChange,
)
from .audited import Audit, DeviceAudit, PoolAudit
from .base import NOTHING_YET, Counters, Device, DriverMemory, Record, Renderer
from .compared import Check, RecordingSummary, WhatIf, WhatIfRow
from .holding import Chain, DeviceHolders, Holder, Holders, Released, ReleaseStep, Site
from .measured import DeviceUsage, Measurement, Series
from .oom import BatchSize, FailedAttempt, OomAction, OomExplanation, OomIncident, OomText, Trial
from .predicted import BatchSearch, Fit, PredictedUse, Prediction
from .state import DeviceStatus, Fragmentation, RecorderStatus, Status, VirtualCard, VirtualStatus

__all__ = [
    "NOTHING_YET",
    "AllocatorConfig",
    "Audit",
    "BatchSearch",
    "BatchSize",
    "Chain",
    "Check",
    "Counters",
    "Device",
    "DeviceAudit",
    "DeviceEmptied",
    "DeviceHolders",
    "DeviceLimit",
    "DeviceStatus",
    "DeviceUsage",
    "DriverMemory",
    "Emptied",
    "FailedAttempt",
    "Fit",
    "Fragmentation",
    "Holder",
    "Holders",
    "Limits",
    "Measurement",
    "OomAction",
    "OomExplanation",
    "OomIncident",
    "OomText",
    "Pin",
    "PoolAudit",
    "PredictedUse",
    "Prediction",
    "Record",
    "RecorderStatus",
    "RecordingSummary",
    "ReleaseStep",
    "Released",
    "Renderer",
    "Reservation",
    "Reservations",
    "Series",
    "Setting",
    "SettingChange",
    "Site",
    "Status",
    "Trial",
    "VirtualCard",
    "VirtualStatus",
    "WhatIf",
    "WhatIfRow",
]
