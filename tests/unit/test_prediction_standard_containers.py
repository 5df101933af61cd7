"""Containers and the like of Python's standard library hold after a prediction what they held before."""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import queue
import threading
import weakref
from array import array

import pytest

pytest.importorskip("torch")

from jupyter_gpumem.prediction import predict


class Thing:
    """What can be referred to weakly."""


def test_containers_are_as_before():
    """An array, a chain of dicts, containers to inherit from, and queues with what is in them."""
    numbers, chain = array("d", [1, 2]), collections.ChainMap({"a": 1}, {"b": [1]})
    names, items = collections.UserDict(a=1), collections.UserList([1])
    queues = [queue.Queue(), queue.LifoQueue(), queue.PriorityQueue()]
    for one in queues:
        one.put([1])
    maps = list(chain.maps)

    def code():
        numbers.append(3)
        numbers[0] = 7
        chain["a"] = 5
        chain.maps[1]["b"].append(2)
        chain.maps.append({})
        names["a"], names["b"] = 2, 3
        items.append(2)
        for one in queues:
            one.get().append(2)
            one.put([3])
            one.put([4])

    for _ in range(2):
        assert predict(code, gpu="T4").not_undone == ()
        assert numbers.tolist() == [1, 2]
        assert all(map(lambda one, other: one is other, chain.maps, maps))
        assert chain.maps == [{"a": 1}, {"b": [1]}]
        assert (dict(names), list(items)) == ({"a": 1}, [1])
        assert [one.unfinished_tasks for one in queues] == [1, 1, 1]
    assert [one.get_nowait() for one in queues] == [[1], [1], [1]]


def test_weak_containers_are_as_before():
    """With the references they had, which still go by themselves."""
    objects = {"kept": Thing(), "other": Thing()}
    keys, values, things = weakref.WeakKeyDictionary(), weakref.WeakValueDictionary(), weakref.WeakSet()
    keys[objects["kept"]], values["kept"] = [1], objects["kept"]
    things.add(objects["kept"])

    def code():
        kept, other = objects.values()
        keys[kept].append(2)
        keys[other], values["kept"], values["other"] = 2, other, other
        things.add(other)
        things.discard(kept)
        del keys[kept]

    for _ in range(2):
        predict(code, gpu="T4")
        assert dict(keys) == {objects["kept"]: [1]}
        assert dict(values) == {"kept": objects["kept"]}
        assert list(things) == [objects["kept"]]
    objects.clear()
    gc.collect()
    assert (len(keys), len(values), len(things)) == (0, 0, 0)


def test_a_weak_dictionary_has_nothing_of_what_is_gone_meanwhile():
    """Its entry is not put back, for nobody would take it out again."""
    keys = weakref.WeakKeyDictionary()
    hidden = iter([Thing()])  # into which nothing looks
    keys[next(iter(hidden.__reduce__()[1][0]))] = 1

    def code():
        assert len(list(hidden)) == len(keys) == 1
        gc.collect()
        assert len(keys) == 0

    predict(code, gpu="T4")
    assert len(keys) == 0


def test_flags_and_attributes_are_as_before():
    """Of events, semaphores, thread-local objects, namespaces of argparse, and stacks of contexts."""
    event, semaphore, local = threading.Event(), threading.Semaphore(2), threading.local()
    options, stack, left = argparse.Namespace(lr=0.1, tags=[]), contextlib.ExitStack(), []
    stack.callback(left.append, 1)
    local.value = 1

    def code():
        event.set()
        semaphore.acquire()
        local.value, local.more = 2, 3
        options.lr, options.more = 1, 2
        options.tags.append(1)
        stack.close()

    for _ in range(2):
        predict(code, gpu="T4")
        assert not event.is_set()
        assert semaphore._value == 2
        assert vars(local) == {"value": 1}
        assert vars(options) == {"lr": 0.1, "tags": []}
        assert left == []
    stack.close()
    assert left == [1]
