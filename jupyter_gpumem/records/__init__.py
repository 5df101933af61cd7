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
from .measured import DeviceUsage, Measurement, Series
from .predicted import BatchSearch, Fit, PredictedUse, Prediction
from .state import DeviceStatus, Fragmentation, RecorderStatus, Status, VirtualCard, VirtualStatus

__all__ = [
    "NOTHING_YET",
    "AllocatorConfig",
    "Audit",
    "BatchSearch",
    "Counters",
    "Device",
    "DeviceAudit",
    "DeviceEmptied",
    "DeviceLimit",
    "DeviceStatus",
    "DeviceUsage",
    "DriverMemory",
    "Emptied",
    "Fit",
    "Fragmentation",
    "Limits",
    "Measurement",
    "Pin",
    "PoolAudit",
    "PredictedUse",
    "Prediction",
    "Record",
    "RecorderStatus",
    "Renderer",
    "Reservation",
    "Reservations",
    "Series",
    "Setting",
    "SettingChange",
    "Status",
    "VirtualCard",
    "VirtualStatus",
]
