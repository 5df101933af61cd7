"""Allocator settings of the running process: what is in force and where it comes from, and how to change it.

One settings call of PyTorch's is not incremental and may be applied by half. So a change is checked here, merged with
what is in force, sent as one string, read back, and taken back if anything is not as wanted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from typing import TYPE_CHECKING, Any

from jupyter_gpumem.allocator.environment import Environment, as_pytorch_reads, permanent_line, read_environment
from jupyter_gpumem.allocator.keys import KEYS, is_known_to
from jupyter_gpumem.allocator.settings import AllocatorSettings, warnings
from jupyter_gpumem.devices import explain_absence, first_actable, give_back, versions
from jupyter_gpumem.errors import InvalidValueError, SettingsRefusedError
from jupyter_gpumem.finishing import uninterrupted
from jupyter_gpumem.records import AllocatorConfig, Setting, SettingChange

from .hazards import (
    lasting,
    not_as_wanted,
    notes_on_caps,
    notes_on_what_stays,
    notes_on_what_will_stay,
    refusals,
    with_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jupyter_gpumem.devices import Backend, Controls

_TOLD = {
    "max_split_size_mb": "max_split_size",
    "garbage_collection_threshold": "garbage_collection_threshold",
    "expandable_segments": "expandable_segments",
    "roundup_power2_divisions": "roundup_power2_divisions",
    "release_lock_on_cudamalloc": "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse": "graph_capture_record_stream_reuse",
}
"""Under which name of the snapshot PyTorch tells of a key."""


class Configuration:
    """The settings of one back end's allocators, as far as they can be known. Thread-safe.

    PyTorch tells the values of some keys and the last string it was given; the rest follows from what came before.

    Args:
        backend: whose.
        controls: what acts on it.
    """

    def __init__(self, backend: Backend, controls: Controls) -> None:
        self.backend = backend
        self._controls = controls
        self._lock = threading.RLock()
        self._environment = read_environment(os.environ)
        self._start = self._known = AllocatorSettings()
        self._text: str | None = None
        self._steps: list[tuple[AllocatorSettings, AllocatorSettings]] = []
        self._about_start: tuple[str, ...] = ()
        self._origin = "default"
        self._notes: list[str] = []

    def in_force(self) -> AllocatorSettings:
        """Return the settings in force; before a device is in use, those that will be."""
        with self._lock:
            self._notes = []
            if not self.backend.ready() and self._text is None:
                # Asking PyTorch would make it read the environment, which the user may still edit.
                self._begin(None, {})
                return self._start
            values = self.backend.settings()
            self._follow(self._controls.settings_text(values), values)
            return self._known.observed(values)

    def _begin(self, text: str | None, values: Mapping[str, Any]) -> None:
        """Note what the process starts, or started, with; `text` and `values` are what PyTorch tells by now."""
        environment = read_environment(os.environ, text)
        notes, asked, own = list(environment.notes), None, self.backend.starting_text()
        try:
            asked = AllocatorSettings.parse(as_pytorch_reads(environment.text))
        except InvalidValueError as error:
            notes.append(f"{environment.variable} is not understood, and PyTorch will probably fail at it: {error}.")
        self._start, origin = asked or AllocatorSettings(), environment.variable
        if own is not None and asked != AllocatorSettings.parse(own):
            if asked is not None and environment.variable is not None:
                given = own or "PyTorch's defaults"
                notes.append(f"{environment.variable} has no effect: the virtual GPU was switched on with {given}.")
            environment, self._start, origin = Environment(None, own, ()), AllocatorSettings.parse(own), "virtual GPU"
        elif text == "" and self._start.observed(values) != self._start:
            notes.append(f"{environment.variable} was set after PyTorch had read it: it has no effect.")
            environment, self._start, origin = Environment(None, "", ()), AllocatorSettings(), None
        self._environment, self._about_start, self._known = environment, tuple(notes), self._start
        self._origin = origin or "default"

    def _follow(self, text: str | None, values: Mapping[str, Any]) -> None:
        """Take notice of the string that PyTorch was given last, by whomever."""
        if self._text is None:
            self._begin(text, values)
            self._text = self._environment.text
        if text is not None and text != self._text:
            self._text = text
            try:
                self._known = self._known.then(as_pytorch_reads(text))
            except InvalidValueError as error:
                self._notes.append(f"The last settings PyTorch was given, by other code, are wrong: {error}.")

    def change(
        self, wanted: AllocatorSettings, *, force: bool, back: bool = False
    ) -> tuple[AllocatorSettings, AllocatorSettings]:
        """Put settings into force, all or nothing.

        Args:
            wanted: the settings.
            force: also what is unsafe or has no effect.
            back: this takes something back, as far as that is possible; a note says what stays.

        Returns the settings before and after.

        Raises:
            SettingsRefusedError: the change is unsafe or has no effect, or PyTorch refuses it.
            InvalidValueError: a key cannot go back to its default.
        """
        with self._lock:
            before = self.in_force()
            if back and (stays := lasting(before, wanted)):
                wanted = with_values(wanted, stays)
                self._notes += notes_on_what_stays(stays)
            if wanted == before:
                return before, before
            _check_version(wanted)
            reasons = refusals(before, wanted, self.segments(), ready=bool(self.backend.ready()), back=back)
            if reasons and not force:
                raise SettingsRefusedError(f"{'; '.join(reasons)}; --force (force=True) tries it all the same")
            self._notes += [f"Forced: {reason}." for reason in reasons]
            with uninterrupted():
                self._put_into_force(wanted, before)
                self._steps.append((before, wanted))
            self._notes += notes_on_what_will_stay(lasting(wanted, before))
            return before, wanted

    def _put_into_force(self, wanted: AllocatorSettings, before: AllocatorSettings) -> None:
        """Hand PyTorch the settings that are wanted; whatever goes wrong, those before are in force again."""
        text = wanted.command(before)
        try:
            try:
                self._controls.apply_settings(text)
            except (ValueError, RuntimeError) as error:
                raise SettingsRefusedError(
                    f"PyTorch refuses {text!r}: {str(error).splitlines()[0]}; nothing was changed"
                ) from None
            after = wanted.observed(self.backend.settings())
            if after != wanted:
                raise SettingsRefusedError(not_as_wanted(wanted, after))
        except BaseException:
            self._restore(before, wanted)
            raise
        self._known, self._text = wanted, text

    def _restore(self, before: AllocatorSettings, tried: AllocatorSettings) -> None:
        """Bring back what was in force, whatever part of the tried settings is now, as far as that is possible."""
        before = with_values(before, lasting(tried, before))
        text = before.command(tried)
        self._controls.apply_settings(text)
        self._known, self._text = before, text

    def undo(self, *, force: bool) -> tuple[AllocatorSettings, AllocatorSettings]:
        """Take the latest change of ours back that was not taken back yet.

        Raises:
            SettingsRefusedError: there is none, other code has changed the settings since, or it is unsafe now.
        """
        with self._lock:
            if not self._steps:
                raise SettingsRefusedError("there is nothing to undo: no settings were changed here")
            before, after = self._steps[-1]
            now = self.in_force()
            if now != after and not force:
                raise SettingsRefusedError(
                    f"other code has changed the settings since, to {str(now) or 'the defaults'!r}; "
                    "--force (force=True) undoes it all the same"
                )
            done = len(self._steps)
            with uninterrupted():
                changed = self.change(before, force=force, back=True)
                del self._steps[done - 1 :]  # what was undone, and the undoing
                stays = lasting(changed[1], before)
                self._steps = [(with_values(old, stays), with_values(new, stays)) for old, new in self._steps]
            return changed

    @property
    def start(self) -> AllocatorSettings:
        """What the process started with."""
        return self._start

    def absence(self) -> tuple[str, ...]:
        """Return why these settings are in force nowhere yet, as a sentence, if they are not."""
        if self.backend.ready():
            return ()
        reason = explain_absence()
        if reason is not None:
            return (f"Of no effect here: {reason}.",)
        if self._text is not None:
            return ()
        asking = "the environment asks for" if self.backend.starting_text() is None else "the virtual GPU begins with"
        return (f"No device is in use yet: this is what {asking}.",)

    def return_unused(self) -> int:
        """Empty the cache and return how many bytes went back to the driver."""
        return sum(before - after for before, after in give_back(self.backend, self._controls).values())

    def shares_memory(self) -> bool:
        """Whether other processes may use tensors of this one."""
        return self._controls.shares_memory()

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments of all devices in use."""
        return [segment for index in self.backend.ready() for segment in self.backend.segments(index) or ()]

    def sources(self, settings: AllocatorSettings) -> dict[str, str]:
        """Return where the value of each key comes from."""
        now, start = settings.named(), self._start.named()
        return {
            key: "this session" if now.get(key) != start.get(key) else self._origin if key in start else "default"
            for key in KEYS
        }

    def record(
        self,
        settings: AllocatorSettings,
        changes: tuple[SettingChange, ...] | None = None,
        notes: tuple[str, ...] = (),
    ) -> AllocatorConfig:
        """Return what is to be shown of the settings in force."""
        version = versions().get("torch", "")
        named, sources, text = settings.named(), self.sources(settings), str(settings)
        caps = [(self.backend.device(i).total or 0, self.backend.limit(i)) for i in self.backend.ready()]
        # Once a device is in use, its cap counts, and no longer the fraction that it began with.
        judged = dataclasses.replace(settings, per_process_memory_fraction=1.0) if caps else settings
        about = (*self._about_start, *notes_on_caps(settings, caps)) if changes is None else ()
        told = self.backend.settings()
        return AllocatorConfig(
            settings=tuple(
                Setting(key, named.get(key, known.default), sources[key], known.accepts, is_known_to(key, version))
                for key, known in KEYS.items()
            ),
            text=text,
            changes=changes,
            verified=tuple(key for key, name in _TOLD.items() if name in told),
            warnings=warnings(judged, capped=any(cap is not None for _, cap in caps)),
            notes=(*about, *self._notes, *notes),
            permanent=permanent_line(text, self._environment),
            version=version,
        )

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Have everything afterwards as it was: what is changed meanwhile is so on trial."""
        kept = vars(self) | {"_steps": list(self._steps), "_notes": list(self._notes)}
        try:
            yield
        finally:
            vars(self).update(kept)


def _check_version(wanted: AllocatorSettings) -> None:
    """Refuse keys that the PyTorch at hand does not know yet.

    Raises:
        InvalidValueError: there is one.
    """
    version = versions().get("torch", "")
    for key in wanted.named():
        if not is_known_to(key, version):
            major, minor = KEYS[key].since or (0, 0)
            raise InvalidValueError(f"{key} came with PyTorch {major}.{minor}; this is {version}")


_configurations: dict[Backend, Configuration] = {}


def configuration(backend: Backend | None = None, controls: Controls | None = None) -> Configuration:
    """Return the configuration of a back end; of the one in use, or that would be, without an argument."""
    if backend is None or controls is None:
        backend, controls = first_actable()
    if backend not in _configurations:
        _configurations[backend] = Configuration(backend, controls)
    return _configurations[backend]


@contextlib.contextmanager
def configurations_aside() -> Iterator[None]:
    """Have every configuration afterwards as it was, and those of the back ends that come meanwhile forgotten."""
    kept = dict(_configurations)
    with contextlib.ExitStack() as each:
        for one in kept.values():
            each.enter_context(one.aside())
        try:
            yield
        finally:
            _configurations.clear()
            _configurations.update(kept)
