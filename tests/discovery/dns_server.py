"""A DNS server whose records a test sets; it can fail as real ones do, and sends long answers by TCP alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, Final

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from fairlead.processes import free_ports

_LONGEST_DATAGRAM: Final = 512


class DnsServer(asyncio.DatagramProtocol):
    """`records` by name, as (type, texts); `rcode` fails all questions, or `failing` ones; `silent` answers none."""

    def __init__(self, ttl_s: int = 0) -> None:
        self.records: dict[str, dict[str, list[str]]] = {}
        self.rcode = dns.rcode.NOERROR
        self.failing: set[str] = set()  # kinds of records; none: all
        self.silent = False
        self.ttl_s = ttl_s
        self.asked: Counter[str] = Counter()
        self.address = ""
        self._transport: Any = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        (port,) = free_ports(1)
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, ("127.0.0.1", port))
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.address = f"127.0.0.1:{port}"

    def stop(self) -> None:
        self._transport.close()
        if self._server is not None:
            self._server.close()

    def set(self, name: str, **records: list[str]) -> None:
        """`A=[...]`, `SRV=["0 0 8000 host."]`; none removes the name."""
        if records:
            self.records[name + "."] = records
        else:
            self.records.pop(name + ".", None)

    def datagram_received(self, data: bytes, sender: Any) -> None:
        if self.silent:
            return
        answer = self._answer(data)
        if len(answer.to_wire()) > _LONGEST_DATAGRAM:
            answer.answer.clear()
            answer.flags |= dns.flags.TC
        self._transport.sendto(answer.to_wire(), sender)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while not self.silent:
                length = int.from_bytes(await reader.readexactly(2))
                answer = self._answer(await reader.readexactly(length)).to_wire()
                writer.write(len(answer).to_bytes(2) + answer)
        writer.close()

    def _answer(self, data: bytes) -> dns.message.Message:
        question = dns.message.from_wire(data)
        (asked,) = question.question
        name, kind = str(asked.name), dns.rdatatype.to_text(asked.rdtype)
        self.asked[name] += 1
        answer = dns.message.make_response(question)
        answer.flags |= dns.flags.RA
        known = self.records.get(name)
        if self.rcode != dns.rcode.NOERROR and kind in (self.failing or {kind}):
            answer.set_rcode(self.rcode)
        elif known is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif known.get(kind):
            answer.answer.append(dns.rrset.from_text(asked.name, self.ttl_s, "IN", kind, *known[kind]))
        return answer
