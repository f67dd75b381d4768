"""A gateway that traces gives its call to the processor a `traceparent`: it counts where the request has none."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.server import SERVICE, ServerName, processor_server
from tests.extproc.world import chat, make_services, request_body, request_headers, response_headers, response_trailers
from tests.tracing.test_tracer import a_tracer, collecting
from tests.waiting import until

OF_THE_CALL, OF_THE_REQUEST = (f"00-{digit * 32}-{digit * 16}-01" for digit in "ab")


@pytest.mark.parametrize("server", ["native", "grpcio"])
@pytest.mark.parametrize(
    ("metadata", "headers", "trace"),
    [
        ((("traceparent", OF_THE_CALL),), {}, "a"),
        ((("traceparent", OF_THE_CALL),), {"traceparent": OF_THE_REQUEST}, "b"),
        ((), {"traceparent": OF_THE_REQUEST}, "b"),
    ],
)
async def test_the_request_s_own_counts_before_that_of_the_call(
    server: ServerName, metadata: tuple[tuple[str, str], ...], headers: dict[str, str], trace: str
) -> None:
    async with collecting() as collector:
        services = make_services()
        services.tracer = a_tracer(collector.url)
        processor = processor_server(services, "127.0.0.1:0", server)
        port = await processor.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            process: Any = channel.stream_stream(
                f"/{SERVICE}/Process",
                request_serializer=pb.ProcessingRequest.SerializeToString,
                response_deserializer=pb.ProcessingResponse.FromString,
            )
            call = process(metadata=metadata)
            messages = (request_headers(extra=headers), request_body(chat()), response_headers(), response_trailers())
            for message in messages:
                await call.write(message)
                assert isinstance(await call.read(), pb.ProcessingResponse)
            await call.done_writing()
            await until(lambda: services.recorder.running_streams == 0, "the call is over")
        await services.tracer.stop()
        await processor.drain(0)
        assert {span.trace_id.hex() for span in collector.spans} == {trace * 32}
