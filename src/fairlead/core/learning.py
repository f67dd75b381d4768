"""Constants learned from answers that were observed in full: milliseconds per token, how long answers are, and how many
tokens each kind of text has.

Times are learned for each model, and for each engine by what factor it is slower than its model's: one model may run on
several kinds of accelerator. `observe` only keeps what one answer showed; `settle`, alongside the request path, puts
what follows from it in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from fairlead.core.answer_times import Ratios, Work
from fairlead.core.endpoint import Endpoint, EndpointSpec, Speed
from fairlead.core.learned_times import EngineTimes, ModelTimes, Sample, ratios_of
from fairlead.core.observation import Observation, works_of
from fairlead.core.pool import Pool
from fairlead.core.reported_times import UNSAID, ReportedTimes, Times, of_model
from fairlead.core.token_model import Rates, TokenModel, mean_rates

MOST_ENGINES_SETTLED: Final = 8  # at one call
_MOST_NAMES: Final = 1024


class Learner:
    """Learned constants: times by model and engine, lengths of answers and tokens by model."""

    def __init__(self) -> None:
        self.models: dict[str, ModelTimes] = {}
        self.engines: dict[tuple[str, str], EngineTimes] = {}  # by address and model
        self.tokens: dict[str, TokenModel] = {}  # by model
        self.reported: dict[str, Times] = {}  # by model, as its engines say; where answers do not show it
        self._reports: dict[tuple[str, str], ReportedTimes] = {}  # by address and model
        self._other_rates: dict[str, Rates] = {}  # of routes and adapters, until something new is in force
        self._unsettled: set[str] = set()  # models
        self._due: dict[tuple[str, str], None] = {}  # engines, in the order in which they are compared to their models

    def rates(self, name: str, pool: Pool) -> Rates:
        """By what a model's tokens are counted; of a route, whose models may differ, the mean."""
        known = self.tokens.get(name)
        if known is not None:
            return known.rates
        found = self._other_rates.get(name)
        if found is None:
            models = {endpoint.model for endpoint in pool.serving(name)} or set(pool.routes.get(name, ()))
            found = mean_rates([self.tokens[model].rates for model in models if model in self.tokens])
            if pool.knows(name) and len(self._other_rates) < _MOST_NAMES:
                self._other_rates[name] = found
        return found

    def observe(self, seen: Observation, pool: Pool) -> None:
        """Keep what one answer showed. Constant work; `settle` puts it in force."""
        endpoint = pool.by_address.get(seen.address)
        if endpoint is None or endpoint.model != seen.model:  # the pool changed meanwhile
            return
        if seen.features and seen.prompt_tokens:
            self.tokens_of(seen.model).add(seen.features, seen.prompt_tokens, seen.address)
        self._unsettled.add(seen.model)
        if seen.several:
            return
        model = self.model_of(endpoint)
        engine = self.engines.setdefault((seen.address, seen.model), EngineTimes())
        reports_cache = engine.reports_cache(seen.usage_form, seen.cached_tokens, endpoint.generation)
        configured = ratios_of(endpoint.spec)
        for work in works_of(seen, reports_cache=reports_cache):
            if seen.adapter is not None and work.requests:  # its first token waited for an adapter, too
                self._learn_load(seen, work, model, engine, configured)
                continue
            model.add(Sample(work, engine, configured))
            engine.add(work, model, configured)
        if seen.completion_tokens:
            model.answer_tokens.add(seen.completion_tokens)

    def _learn_load(
        self, seen: Observation, work: Work, model: ModelTimes, engine: EngineTimes, configured: Ratios
    ) -> None:
        """What a first token took beyond its prompt's time is the load of its adapter, if it waited for no slot."""
        need = seen.adapter
        streamed, disturbed = seen.first_token_ms is not None, seen.engine_full or not model.knows_prefill
        if need is None or not need.load_tokens or need.wait_ms or disturbed or not streamed:
            return
        by_line_ms = configured.line(model.line).ms(work)
        load_ms = max(0.0, work.took_ms - by_line_ms * engine.prefill.value - engine.extra_ms)
        model.adapter_load_ms.add(load_ms)
        engine.adapter_load_ms.add(load_ms)

    def read_reports(self, pool: Pool) -> None:
        """Put in force what engines say of themselves, of models of which answers have not shown it yet."""
        changed = set()
        for endpoint in pool.endpoints:
            model = self.models.get(endpoint.model)
            if model is not None and model.knows_prefill and model.knows_decode:
                continue
            which = endpoint.address, endpoint.model
            reports = self._reports.get(which)
            if reports is None:
                reports = self._reports[which] = ReportedTimes()
            if reports.look(endpoint):
                changed.add(endpoint.model)
        for name in changed:
            engines = [each for each in pool.endpoints if each.model == name]
            self.reported[name] = of_model((each.spec, self._reports[each.address, name].value) for each in engines)
            self.apply(engines)

    def settle(self, pool: Pool) -> None:
        """Put what was learned since in force on the endpoints of its models."""
        for _ in self.settling(lambda: pool):
            pass

    def settling(self, pool: Callable[[], Pool]) -> Iterator[None]:
        """As `settle`, in steps of some milliseconds, between which requests can be served; `pool` is the present one.

        A large pool's engines take turns: each is compared to its model a few calls later.
        """
        settled, self._unsettled = self._unsettled, set()
        if settled:
            self._other_rates.clear()
        self._due.update(dict.fromkeys(which for which in self.engines if which[1] in settled))
        engines = list(islice(self._due, MOST_ENGINES_SETTLED))
        for which in engines:
            del self._due[which]
        yield from self._settling_times(settled, engines, pool)
        for name in settled:
            if (tokens := self.tokens.get(name)) is not None:
                tokens.settle()
                yield
        settled.update(model for _, model in engines)
        if settled:
            self.apply([one for one in pool().endpoints if one.model in settled])

    def _settling_times(
        self, models: set[str], engines: Sequence[tuple[str, str]], pool: Callable[[], Pool]
    ) -> Iterator[None]:
        """Fit the lines of `models`, and compare `engines` to theirs; both again where that showed another difference.

        A line of engines that are not known to differ lies between them and has the form of none.
        """
        for again in False, True, True:
            for name in models:
                if (model := self.models.get(name)) is not None:
                    model.settle(again=again)
                    yield
            for which in engines:
                engine, model = self.engines.get(which), self.models.get(which[1])
                endpoint = pool().by_address.get(which[0])
                if engine is not None and model is not None and endpoint is not None:
                    engine.settle(model, ratios_of(endpoint.spec))
                    yield
            for name in {name for _, name in engines} & self.models.keys():
                self.models[name].level([each for which, each in self.engines.items() if which[1] == name])
            models = {which[1] for which in engines if which in self.engines and self.engines[which].moved}
            engines = [which for which in engines if which[1] in models]

    def settle_all(self, pool: Pool) -> None:
        """As `settle`, for all models and engines at once."""
        self._unsettled.update(self.models)
        self.settle(pool)
        while self._due:
            self.settle(pool)

    def forget_all_but(self, endpoints: Iterable[Endpoint]) -> None:
        """Others left the pool, and what was learned of them goes with them."""
        kept = {(endpoint.address, endpoint.model) for endpoint in endpoints}
        models = {model for _, model in kept}
        self.engines = {which: times for which, times in self.engines.items() if which in kept}
        self.models = {model: times for model, times in self.models.items() if model in models}
        self.tokens = {model: learned for model, learned in self.tokens.items() if model in models}
        self.reported = {model: times for model, times in self.reported.items() if model in models}
        self._reports = {which: reports for which, reports in self._reports.items() if which in kept}
        self._other_rates.clear()

    def apply(self, endpoints: Iterable[Endpoint]) -> None:
        """Put what was learned in force; a model of which nothing was learned keeps its configured values, or has those
        that its engines say.
        """
        for endpoint in endpoints:
            model, spec = self.models.get(endpoint.model), endpoint.spec
            prefill_ms, decode_ms = self._said(spec, endpoint.speed)
            if model is None:
                endpoint.speed = msgspec.structs.replace(
                    endpoint.speed, prefill_ms_per_token=prefill_ms, decode_ms_per_token=decode_ms
                )
                continue
            engine = self.engines.get((endpoint.address, endpoint.model), model.newcomer)
            known, line = endpoint.speed, ratios_of(spec).line(model.line)
            endpoint.speed = Speed(
                line.prefill_ms * engine.prefill.value if model.knows_prefill else prefill_ms,
                line.alone_ms * engine.decode.value if model.knows_decode else decode_ms,
                line.slowdown if model.knows_decode else known.batch_slowdown,
                model.answer_tokens.value,
                (engine.adapter_load_ms if engine.adapter_load_ms.learned else model.adapter_load_ms).value,
                line.fixed_ms * engine.prefill.value + engine.extra_ms if model.knows_prefill else known.fixed_ms,
                line.growth if model.knows_prefill else known.prefill_growth,
            )

    def _said(self, spec: EndpointSpec, known: Speed) -> tuple[float, float]:
        """Milliseconds per token of an engine of whose model no answer was seen."""
        said = self.reported.get(spec.model, UNSAID)
        by_prefill, by_decode = said.prefill_ms, said.decode_ms
        return (
            known.prefill_ms_per_token
            if by_prefill is None or spec.prefill_configured
            else by_prefill * spec.prefill_ratio,
            known.decode_ms_per_token if by_decode is None or spec.decode_configured else by_decode * spec.decode_ratio,
        )

    def model_of(self, endpoint: Endpoint) -> ModelTimes:
        model = self.models.get(endpoint.model)
        if model is None:
            model = self.models[endpoint.model] = ModelTimes(endpoint.spec, endpoint.speed.answer_tokens)
        return model

    def tokens_of(self, model: str) -> TokenModel:
        return self.tokens.setdefault(model, TokenModel())
