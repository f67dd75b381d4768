"""A DNS server whose records a test sets; it can fail as real ones do."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class DnsServer(asyncio.DatagramProtocol):
    """`records` by name, as (type, texts); `rcode` fails every question, `silent` answers none."""

    def __init__(self, ttl_s: int = 0) -> None:
        self.records: dict[str, dict[str, list[str]]] = {}
        self.rcode = dns.rcode.NOERROR
        self.silent = False
        self.ttl_s = ttl_s
        self.asked: Counter[str] = Counter()
        self.address = ""
        self._transport: Any = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, ("127.0.0.1", 0))
        self.address = "127.0.0.1:{}".format(self._transport.get_extra_info("sockname")[1])

    def stop(self) -> None:
        self._transport.close()

    def set(self, name: str, **records: list[str]) -> None:
        """`A=[...]`, `SRV=["0 0 8000 host."]`; none removes the name."""
        if records:
            self.records[name + "."] = records
        else:
            self.records.pop(name + ".", None)

    def datagram_received(self, data: bytes, sender: Any) -> None:
        if self.silent:
            return
        question = dns.message.from_wire(data)
        (asked,) = question.question
        name, kind = str(asked.name), dns.rdatatype.to_text(asked.rdtype)
        self.asked[name] += 1
        answer = dns.message.make_response(question)
        answer.flags |= dns.flags.RA
        known = self.records.get(name)
        if self.rcode != dns.rcode.NOERROR:
            answer.set_rcode(self.rcode)
        elif known is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif known.get(kind):
            answer.answer.append(dns.rrset.from_text(asked.name, self.ttl_s, "IN", kind, *known[kind]))
        self._transport.sendto(answer.to_wire(), sender)
