"""The samples of a refresh are sent as ipykernel's comm would send them, without its building each message anew."""

from __future__ import annotations

import pytest
from comm.base_comm import BaseComm as OtherComm
from ipykernel.comm import comm as ipykernel_comm
from jupyter_client.session import Session, extract_header

from jupyter_gpumem.live.posting import samples_post
from jupyter_gpumem.live.widget import Channel
from jupyter_gpumem.live.wire import SAMPLES, Message


class Socket:
    """Keeps what was sent."""

    def __init__(self):
        self.sent = []

    def send_multipart(self, parts, *_, **__):
        self.sent.append([bytes(part) for part in parts])


class StandIn:
    """What a comm needs of a kernel."""

    def __init__(self, **options):
        self.session = Session(key=b"secret", username='a "user" \u00fc', metadata={"who": "us"}, **options)
        self.iopub_socket = Socket()
        self.parent = {}

    def get_parent(self):
        return self.parent

    def begin(self):
        """A cell begins."""
        self.parent = self.session.msg("execute_request", {"code": "x"})

    def received(self):
        """Return the messages so far as a front end reads them; a wrong signature raises, or one that comes twice."""
        reader, found = Session(key=self.session.key), []
        for parts in self.iopub_socket.sent:
            topics, rest = reader.feed_identities(parts)
            found.append({"topics": topics} | reader.deserialize(rest))
        return found


@pytest.fixture
def kernel(monkeypatch):
    """A kernel that ipykernel's comms believe in."""
    one = StandIn()
    monkeypatch.setattr(ipykernel_comm.Kernel, "initialized", lambda: True)
    monkeypatch.setattr(ipykernel_comm.Kernel, "instance", lambda: one)
    return one


def made(kernel, kind=ipykernel_comm.BaseComm):
    """Return a comm of that kernel which says nothing by itself, not even when it is collected."""
    comm = kind(comm_id="c", primary=False)
    comm.kernel, comm._closed = kernel, True
    return comm


def test_what_arrives_is_what_the_comm_would_have_sent(kernel):
    """Topic, header, parent, metadata, content and buffers are the same, before, in and after a cell; ids are new."""
    comm = made(kernel)
    post = samples_post(comm)
    for begin in (False, True, True):
        if begin:
            kernel.begin()
        comm.send({"method": "custom", "content": SAMPLES}, buffers=[b"one", b"two"])
        post.send([b"one", b"two"])
    received = kernel.received()
    for theirs, ours in zip(received[::2], received[1::2], strict=True):
        for own in ("msg_id", "date"):
            theirs["header"].pop(own), ours["header"].pop(own)
        for message in (theirs, ours):
            message.pop("msg_id")
            message["buffers"] = [bytes(buffer) for buffer in message["buffers"]]
        assert ours == theirs
    assert received[0]["parent_header"] == {}
    assert received[-1]["parent_header"]["msg_id"] == extract_header(kernel.parent)["msg_id"]
    assert received[-1]["buffers"] == [b"one", b"two"]


def test_every_message_has_an_id_and_a_date_of_its_own(kernel):
    """Messages that are alike are still told apart, and dated by the clock in the zone that is said."""
    post = samples_post(made(kernel))
    for _ in range(3):
        post.send([b"x"])
    headers = [message["header"] for message in kernel.received()]
    assert len({header["msg_id"] for header in headers}) == 3
    assert all(header["date"].utcoffset().total_seconds() == 0 for header in headers)
    assert headers == sorted(headers, key=lambda header: header["date"])


def test_comms_that_send_in_another_way_are_left_to_it(kernel):
    """Another kernel's comm, one whose sending was replaced, one without a kernel, one that packs no JSON: no."""

    class Replaced(ipykernel_comm.BaseComm):
        def publish_msg(self, *_, **__):
            """Go elsewhere."""

    assert samples_post(made(kernel)) is not None
    assert samples_post(made(kernel, OtherComm)) is None
    assert samples_post(made(kernel, Replaced)) is None
    assert samples_post(made(None)) is None
    assert samples_post(made(StandIn(packer="pickle"))) is None


class Widget:
    """What a channel needs of a widget."""

    def __init__(self, comm):
        self.comm = comm
        self.sent = []

    def send(self, content, buffers):
        self.sent.append(content)


def test_a_channel_posts_samples_only_and_nothing_once_its_widget_is_closed(kernel):
    """Rows of a refresh go the short way; state, histories, and whatever comes after the end go the widget's own."""
    channel = Channel.__new__(Channel)
    channel.widget = Widget(made(kernel))
    channel._post = samples_post(channel.widget.comm)
    channel.send(Message(SAMPLES, [b"row"]))
    channel.send(Message(SAMPLES | {"history": True}, [b"rows"]))
    channel.send(Message({"kind": "state"}, []))
    assert len(kernel.received()) == 1
    assert [content["kind"] for content in channel.widget.sent] == ["samples", "state"]
    channel.widget.comm = None
    channel.send(Message(SAMPLES, [b"row"]))
    assert len(kernel.received()) == 1
    assert channel.widget.sent[-1] == SAMPLES
