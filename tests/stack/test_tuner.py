"""A tuner of live traffic behind a real Envoy."""

from __future__ import annotations

from typing import Any

from tests.stack.conftest import Stack, Start, engine

SMALL = {"window": 20, "wash_out": 0, "warm_up": 0}


async def shown(pool: Stack) -> dict[str, Any]:
    async with pool.client.get(f"{pool.admin_url}/debug/tuner") as response:
        return dict(await response.json())


async def test_live_it_tries_weights_logs_each_trial_and_goes_back_when_it_is_turned_off(stack: Start) -> None:
    pool = await stack(engine("small"), engine("small"), tuner=SMALL | {"mode": "live"})
    while not (known := await shown(pool))["trials"]:
        assert (await pool.chat(model="small")).status == 200
    trial = known["trials"][-1]
    assert trial["candidate"] != known["configured"] == {"rtt_weight": 1.0, "queue_weight": 1.0}
    assert await pool.metric("fairlead_tuner_trials_total") >= 1

    async def logged() -> bool:
        return "weights were tried" in pool.log()

    await pool.until(logged, "the trial is in the log")
    pool.write(tuner={"mode": "off"})

    async def ended() -> bool:
        async with pool.client.get(f"{pool.admin_url}/debug/tuner") as response:
            return response.status == 404

    await pool.until(ended, "no tuner runs any more")
    async with pool.client.get(f"{pool.admin_url}/debug/status") as response:
        parameters = (await response.json())["policy"]["parameters"]
    assert (parameters["rtt_weight"], parameters["queue_weight"]) == (1.0, 1.0)
    assert await pool.metric("fairlead_tuner_weight") == 0
