"""The engine does the simulator's batches for real, and no policy changes what is written."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_gguf

from pagefault import BlockPool, Request, RequestTooLarge, Scheduler, engine_runs, on_cpu, simulate
from pagefault.decoder import Decoder
from pagefault.engine import Engine
from pagefault.engine_runs import COUNTED, FITTED, RECORDED, compare_policies, differences, steps_by_rows
from pagefault.fitted import fit_cost
from pagefault.llama import LlamaShape, random_weights
from pagefault.policies import least_lost, newest, requester, watermark

ROOT = Path(__file__).parents[1]
SHAPE = LlamaShape(num_layers=2, hidden=32, num_heads=4, num_kv_heads=2, head_dim=16, mlp=48, vocabulary=89)
LENGTHS = ((20, 22), (33, 30), (5, 40), (17, 15), (30, 9), (9, 25))
RULES = {
    "one at a time": dict(workers=1), "reserved": dict(reserve=80), "watermark": dict(admission=watermark(0.2)),
    "newest, keep": dict(victim=newest, preemption="keep"), "requester, restart": dict(victim=requester, patience=3),
    "least lost, keep": dict(victim=least_lost, preemption="keep", patience=2), "chunks": dict(token_budget=7),
    "swap": dict(preemption="swap", swap_blocks=30), "swap, little room": dict(preemption="swap", swap_blocks=3),
}
STEADY = dict(row_counts=(8,), split=False)  # what a row gives doesn't depend on the others


def decoder(num_blocks=10, xp=np, dtype=np.float32, **options):
    return Decoder(SHAPE, random_weights(SHAPE), num_blocks, 8 if "block_size" not in options else options.pop("block_size"),
                   **dict(max_len=96, dtype=dtype, xp=xp) | options)


def serve(engine, requests, **rules):
    with on_cpu(checked=False):
        return engine.serve(requests, **dict(workers=6) | rules)


@pytest.fixture(scope="module")
def engine():
    return Engine(decoder(14, **STEADY))


@pytest.fixture(scope="module")
def alone(engine):
    """The tokens of each sequence that never met another."""
    serve(engine, [Request(*each) for each in LENGTHS], workers=1)
    return engine.tokens


@pytest.mark.parametrize("name", RULES)
def test_no_policy_changes_a_token_and_every_step_is_the_simulated_one(engine, alone, name):
    requests, rules = [Request(*each) for each in LENGTHS], dict(workers=6, token_budget=8) | RULES[name]
    result = serve(engine, requests, **rules)
    assert engine.tokens == alone
    assert result.steps[COUNTED].equals(simulate(requests, 14, 8, **rules).steps[COUNTED])
    assert (result.summary["preemptions"] > 0) == (name not in ("one at a time", "reserved"))
    assert (result.summary["swapped_blocks"] > 0) == name.startswith("swap")
    assert len(engine.log) == result.summary["steps"] and sum(row[3] + row[5] for row in engine.log) == result.steps.ns.sum()


def test_prefixes_found_again_give_the_same_tokens(engine):
    common = tuple(range(24))
    requests = [Request(24 + n, 6, tokens=common + tuple(range(30, 30 + n))) for n in (3, 9, 1, 14)] * 2
    without = serve(engine, requests, workers=2).summary["shared_tokens"], engine.tokens
    shared = serve(engine, requests, workers=2, prefix_caching=True).summary["shared_tokens"]
    assert without[0] == 0 and shared >= 24 * 6 and engine.tokens == without[1]


def test_samples_share_their_prompt_and_differ_in_their_first_token(engine):
    request = Request(19, 12, tokens=tuple(range(19)), samples=3)
    serve(engine, [request])
    tokens = engine.tokens
    assert sum(row[0] for row in engine.log) == 18 + 3 * 12  # the prompt but its last token is fed once
    firsts = [tokens[0, sample][19] for sample in range(3)]
    assert len(set(firsts)) == 3
    for sample, first in enumerate(firsts):  # each goes on as a prompt with that token does
        serve(engine, [Request(20, 11, tokens=(*range(19), first))])
        assert engine.tokens[0, 0] == tokens[0, sample]


def test_a_copy_on_write_copies_every_layer():
    one = Engine(decoder(6))
    pool = BlockPool(6, 8)
    scheduler = Scheduler(pool)
    scheduler.submit(Request(13, 4, tokens=tuple(range(13)), samples=2))
    copied = []
    while scheduler.unfinished:
        batch = scheduler.step()
        before = one.decoder.cache.k.copy()
        one.compute_ns(batch)
        for pair in batch.copies:
            source, target = ([block, block + 7] for block in pair)  # of both layers, 6 blocks and one more each
            assert (one.decoder.cache.k[target, :4] == before[source, :4]).all()  # tokens 8 to 11 of the prompt
            copied.append(pair)
    assert len(copied) == 1


def test_prompts_without_ids_depend_on_the_seed_alone():
    with on_cpu(checked=False):
        runs = [Engine(decoder(10), seed) for seed in (1, 1, 2)]
        for run in runs:
            run.serve([Request(7, 3)])
    assert runs[0].tokens == runs[1].tokens != runs[2].tokens


def test_margins_are_how_far_the_best_logit_is_above_the_second():
    one = Engine(decoder(10), margins=True)
    serve(one, [Request(7, 3), Request(5, 4)])
    assert set(one.margins) == {(0, 0, 7), (0, 0, 8), (0, 0, 9), (1, 0, 5), (1, 0, 6), (1, 0, 7), (1, 0, 8)}
    logits = np.sort(one.decoder.step(one.tokens[1, 0][:5], range(5), [[0] * 12] * 5, [4])[0])
    assert one.margins[1, 0, 5] == pytest.approx(logits[-1] - logits[-2], abs=1e-5)


@pytest.mark.parametrize("request_, rules, error, text", [
    (Request(90, 7), {}, RequestTooLarge, "a request of 97 tokens, and max_len is 96"),
    (Request(2, 7, tokens=(1, 89)), {}, ValueError, "token ids from 1 to 89, and the vocabulary has 89"),
    (Request(2, 7), dict(token_budget=9), ValueError, "token_budget = 9, and the decoder has room for 8 rows"),
    (Request(2, 7), dict(token_budget=None), ValueError, "token_budget = None"),
    (Request(2, 7), dict(like_threads=True), ValueError, "like_threads"),
    (Request(2, 7), dict(overlap_swap=True), ValueError, "its swaps"),
])
def test_it_refuses_what_it_cannot_do_before_anything_runs(engine, request_, rules, error, text):
    serve(engine, [Request(3, 2)])
    before = engine.tokens
    with pytest.raises(error, match=text):
        serve(engine, [Request(3, 2), request_], **rules)
    assert engine.tokens is before


def test_a_fit_finds_the_cost_that_made_the_steps():
    random = np.random.default_rng(0)
    steps = random.integers(1, [600, 60_000, 90_000], (300, 3)).tolist()

    def made(n, context, pairs):
        return 200_000 + 3e6 * (1 + (n / 150) ** 2) ** 0.5 + 12.5 * context + 0.75 * pairs

    fit = fit_cost([(*step, made(*step), 0, 0) for step in steps], [(n, 90_000 + 7_000 * n) for n in (1, 4, 16)])
    assert [fit.context_ns, fit.pair_ns, fit.moving_ns, fit.block_ns] == pytest.approx([12.5, 0.75, 90_000, 7_000], rel=0.05)
    assert fit.transfer_ns(0, 16) == 0 and fit.transfer_ns(10, 16) == pytest.approx(160_000, rel=0.01)
    for n in (1, 100, 600):
        assert fit.fixed_ns + fit.weights_ns * (1 + (n / fit.knee_tokens) ** 2) ** 0.5 == pytest.approx(made(n, 0, 0), rel=0.01)


def test_a_fit_needs_steps_and_no_term_is_negative():
    with pytest.raises(ValueError, match="9 steps, and 10 are needed"):
        fit_cost([(1, 1, 1, 1000, 0, 0)] * 9)
    falling = fit_cost([(1, context, 0, 10_000 - context, 0, 0) for context in range(20)])
    assert min(falling.fixed_ns, falling.weights_ns, falling.context_ns, falling.pair_ns) >= 0


def test_policies_are_compared_step_by_step(engine):
    rules = {"reserved": dict(reserve=80), FITTED: RULES["watermark"], "newest is swapped": RULES["swap"]}
    said = []
    with on_cpu(checked=False):
        rows, cost = compare_policies(engine.decoder, [Request(*each) for each in LENGTHS], 6, rules, said.append)
    assert [row["policy"] for row in rows] == list(rules) and [row["fitted"] for row in rows] == [False, True, False]
    assert rows[-1]["swap_s"] > 0 and cost.moving_ns + cost.block_ns > 0 and len(said) == 6
    assert all(row["simulated_s"] > 0 for row in rows)


def test_batches_that_differ_from_the_simulated_ones_are_an_error(engine, monkeypatch):
    monkeypatch.setattr(engine_runs, "simulate", lambda *args, **rules: simulate(*args, **rules | {"workers": 1}))
    with on_cpu(checked=False), pytest.raises(ArithmeticError, match="did different batches"):
        compare_policies(engine.decoder, [Request(*each) for each in LENGTHS], 6, {FITTED: {}}, lambda text: None)


def test_where_tokens_differ_is_found_with_the_margin_there(engine, monkeypatch):
    jobs = [Request(*each) for each in LENGTHS[:3]]
    with on_cpu(checked=False):
        rows = differences(engine.decoder, jobs, 3, {"first": {}, "second": dict(patience=1)})
    assert [(row["policy"], row["same"], row["of"]) for row in rows] == [("first", 3, 3), ("second", 3, 3)]
    real = Engine.serve

    def spoilt(self, *args, **options):
        result = real(self, *args, **options)
        if options.get("patience"):
            self.tokens[1, 0][40] += 1
        return result
    monkeypatch.setattr(Engine, "serve", spoilt)
    with on_cpu(checked=False):
        first, second, place = differences(engine.decoder, jobs, 3, {"first": {}, "second": dict(patience=1)})
    assert second["same"] == 2 and (place["sequence"], place["position"]) == (1, 40) and place["margin"] > 0


def test_steps_are_timed_by_rows(engine):
    with on_cpu(checked=False):
        rows = steps_by_rows({"here": engine.decoder}, counts=(1, 2), context=16, repeats=3)
    assert [(row["way"], row["size"], row["tokens"]) for row in rows] == [("here", 1, 16), ("here", 2, 32)]
    assert all(0 < row["low_us"] <= row["median_us"] <= row["high_us"] for row in rows)


def test_the_command_decodes_under_seven_policies_on_a_cpu(run_command, monkeypatch):
    monkeypatch.setattr("pagefault.engine_command.gpu_available", lambda: False)
    out = run_command("engine", "--jobs 3 --workers 3")
    assert out.count("steps,") == 7 and out.count("measured / simulated throughput") == 7
    with pytest.raises(SystemExit):
        run_command("engine", "--output here")


def test_the_command_gives_a_models_answers_and_says_that_they_are_the_same(run_command, monkeypatch, tmp_path):
    pytest.importorskip("gguf", reason="a model's file is read with the package gguf (extra: model)")
    monkeypatch.setattr("pagefault.engine_command.gpu_available", lambda: False)
    path = tiny_gguf.write_gguf(tmp_path / "tiny.gguf", tiny_gguf.tensors(), tiny_gguf.metadata())
    out = run_command("engine", "--tokens 6 --gguf", str(path))
    assert out.count("\n> ") + out.startswith("> ") == 4 and out.count("4 of 4 answers are the same") == 2
    for missing in (tmp_path / "none.gguf", Path(__file__)):
        with pytest.raises(SystemExit):
            run_command("engine", "--gguf", str(missing))


def test_the_readmes_and_the_notebooks_figures_are_the_recorded_ones():
    table = pd.read_csv(RECORDED / "policies.csv")
    ratio = (table.measured_tokens_s / table.simulated_tokens_s)[~table.fitted]
    assert len(ratio) == 6 and (abs(ratio - 1) <= 0.1).all()
    worst, best = (f"{100 * abs(ratio - 1).agg(which):.1f}" for which in ("max", "min"))
    assert f"within {best} to {worst}%" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_on_a_gpu_no_policy_changes_a_token(dtype):
    import cupy

    gpu, first = Engine(decoder(14, cupy, dtype, **STEADY)), None
    for rules in RULES.values():
        gpu.serve([Request(*each) for each in LENGTHS], **dict(workers=6) | rules)
        first = first or gpu.tokens
        assert gpu.tokens == first


@pytest.mark.gpu
def test_on_a_gpu_the_tokens_are_the_cpus(alone):
    import cupy

    gpu = Engine(decoder(14, cupy, **STEADY))
    gpu.serve([Request(*each) for each in LENGTHS], workers=6)
    assert gpu.tokens == alone
