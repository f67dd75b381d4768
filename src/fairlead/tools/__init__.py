"""The wing that studies: simulate, replay, tune, fit, plan, bench and demo. Nothing that serves imports it."""
