"""A desktop's service of notices: ``notification_service.py FILE`` adds a line (title, text) to FILE for each."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from dbus_fast import BusType, Message, MessageType
from dbus_fast.aio import MessageBus

SERVICE = Path(__file__)
NAME = "org.freedesktop.Notifications"
FORM = """<node><interface name="org.freedesktop.Notifications">
<method name="Notify"><arg type="s" direction="in"/><arg type="u" direction="in"/><arg type="s" direction="in"/>
<arg type="s" direction="in"/><arg type="s" direction="in"/><arg type="as" direction="in"/>
<arg type="a{sv}" direction="in"/><arg type="i" direction="in"/><arg type="u" direction="out"/></method>
<method name="GetCapabilities"><arg type="as" direction="out"/></method>
<method name="GetServerInformation"><arg type="s" direction="out"/><arg type="s" direction="out"/>
<arg type="s" direction="out"/><arg type="s" direction="out"/></method>
<method name="CloseNotification"><arg type="u" direction="in"/></method>
<signal name="NotificationClosed"><arg type="u"/><arg type="u"/></signal>
<signal name="ActionInvoked"><arg type="u"/><arg type="s"/></signal>
<signal name="ActivationToken"><arg type="u"/><arg type="s"/></signal>
<signal name="NotificationReplied"><arg type="u"/><arg type="s"/></signal>
</interface></node>"""


async def serve(path: Path) -> None:
    """Answer what desktops are asked, until the bus goes."""
    bus = await MessageBus(bus_type=BusType.SESSION).connect()

    def answer(message: Message) -> Message | None:
        if message.member == "Introspect":
            return Message.new_method_return(message, "s", [FORM])
        if message.message_type is not MessageType.METHOD_CALL or message.interface != NAME:
            return None
        if message.member == "Notify":
            with path.open("a") as stream:
                stream.write(json.dumps(message.body[3:5]) + "\n")
            return Message.new_method_return(message, "u", [1])
        if message.member == "GetCapabilities":
            return Message.new_method_return(message, "as", [["body", "actions"]])
        if message.member == "GetServerInformation":
            return Message.new_method_return(message, "ssss", ["test", "test", "1", "1.2"])
        return Message.new_method_return(message)

    bus.add_message_handler(answer)
    await bus.request_name(NAME)
    path.touch()
    await bus.wait_for_disconnect()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
