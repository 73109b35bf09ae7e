import pandas as pd
import pytest

from pagefault import experiments
from pagefault.experiments import (
    SWEEPS,
    engine_requests,
    over_reserving,
    recorded_sweep,
    run_again,
    serve_apart,
    serve_engine,
    serve_priced,
)
from pagefault.policies import newest
from pagefault.serve import serve

CHEAP = {  # a row of each record, to be run again
    "cliff": "seed == 3 and workers == 16 and victim == 'newest'",
    "run_length": "jobs == 128 and seed == 5 and share == 0.02",
    "causes": "seed == 2 and prompt_ns == 0 and victim == 'newest' and patience == 0 and preemption == 'keep'",
    "prices": "seed == 6 and gpu == 'h200' and preemption == 'keep' and share == 0.1",
    "contest": "seed == 3 and victim == 'least-lost' and share == 0.05",
    "estimating": "seed == 1 and victim == 'newest' and share == 0.05 and prompt_ns == 0",
    "machines": "seed == 4 and victim == 'newest' and machines == 2 and workers == 128",
    "reserve": None,  # seconds: the notebook runs one
    "load": "traffic == 'azure-conv' and seed == 2 and rate == 12 and victim == 'newest' and share == 0",
    "chunks": "seed == 2 and token_budget == 2048 and num_requests == 300",
    "prefixes": "seed == 2 and system_tokens == 1024 and prefix_caching",
    "swap": "seed == 2 and block_size == 64 and piece_ns == 1000",
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_record_is_what_a_run_gives_now(name):
    frame = recorded_sweep(name)
    assert not frame.duplicated(frame.columns[: frame.columns.get_loc("outcome")]).any() and len(CHEAP) == len(SWEEPS)
    if CHEAP[name]:
        rows = frame.query(CHEAP[name])
        assert len(rows) == 1
        run_again(name, rows.iloc[0])


@pytest.mark.parametrize("name, figure, more", [("cliff", "steps", 1), ("chunks", "ttft_p50_ms", 1e-6)])
def test_a_record_that_was_changed_is_noticed(name, figure, more):
    row = recorded_sweep(name).query(CHEAP[name]).iloc[0].copy()
    row[figure] += more
    with pytest.raises(ValueError, match=f"{name}, .*'seed': [23].*: {figure} is "):
        run_again(name, row)


def test_throughput_is_over_the_server_that_reserves_with_the_same_jobs_seed_and_price():
    keys, rows = ["jobs", "seed", "prompt_ns"], [[8, 1, 0, 2048, 100], [8, 1, 9, 2048, 300], [8, 2, 0, 2048, 50],
                                                 [8, 2, 0, None, 25], [8, 1, 9, None, 100], [8, 1, 0, None, 400]]
    frame = pd.DataFrame(rows, columns=[*keys, "reserved", "seconds"])
    assert over_reserving(frame).times.tolist() == [2, 3, 0.25]
    assert over_reserving(frame.query("prompt_ns == 0").rename(columns={"seconds": "steps"})).times.tolist() == [2, 0.25]


def test_a_gpus_steps_are_over_the_reserving_server_on_that_gpu():
    frame = pd.DataFrame([[1, None, 2048, 100.0], [1, "h200", 2048, 300.0], [1, None, None, 50.0], [1, "h200", None, 100.0]],
                         columns=["seed", "gpu", "reserved", "seconds"])
    assert over_reserving(frame).times.tolist() == [2, 3]


def test_a_small_reserve_helps_a_good_rule_wherever_prompts_have_a_price_and_only_there():
    rows = over_reserving(recorded_sweep("prices")).query("victim == 'newest' and preemption != 'keep'")
    times = rows.pivot_table(index=["gpu", "prompt_ns", "seed"], columns="share", values="times")
    gains = times[0.02] / times[0] - 1
    assert (gains["none", 0] < 0.01).all() and (gains.drop(("none", 0)) > 0.02).all()


def test_paging_with_a_small_reserve_beats_a_tight_limit_and_without_it_only_a_loose_one():
    speed = recorded_sweep("load").query("traffic == 'answers' and rate == 12")
    loose, tight = (speed[speed.reserved == slots].tokens_per_second for slots in (2048, 1600))
    newest, reserve = (speed[(speed.victim == "newest") & (speed.share == share)].tokens_per_second for share in (0, 0.05))
    assert loose.max() < newest.min() <= newest.max() < tight.min() <= tight.max() < reserve.min()


def test_every_record_names_its_command():
    for name in SWEEPS:
        frame = pd.read_csv(experiments.RECORDED / f"{name}.csv", encoding="utf-8")
        assert set(frame.command) == {f"python tests/bench_serving.py {name}"}


def test_the_cliff_and_its_plateau():
    frame = recorded_sweep("cliff")
    naive = frame.query("reserved > 0 and workers == 256").set_index("seed").steps
    times = frame.assign(times=frame.seed.map(naive) / frame.steps).groupby(["victim", "workers"]).times.mean()
    assert 2.1 < times["requester", 80] < 2.4 and times["requester", 96] < 0.3 and times["newest", 256] > 2.5


def test_waiting_is_what_costs_most_and_the_three_do_not_add_up():
    rows = recorded_sweep("causes")
    stuck = rows[rows.outcome != "finished"]
    assert set(zip(stuck.victim, stuck.patience, stuck.preemption)) == {("requester", 0, "restart")}
    done = rows[(rows.outcome == "finished") & rows.reserved.isna() & (rows.prompt_ns == 0)]
    assert done[done.patience == 0].seconds.max() < 0.7 * done[done.patience == 32].seconds.min()


def test_a_price_for_prompts_slows_all_and_keeps_the_order():
    free, priced = (serve_priced(ns, jobs=64, num_blocks=600, victim="newest", patience=0) for ns in (0, 5000))
    assert priced["preemptions"] == free["preemptions"] > 0 and priced["steps"] == free["steps"]
    assert priced["seconds"] > free["seconds"]


def test_one_machine_is_the_whole_and_parts_are_slower():
    one, two = (serve_apart(n, 256, 1, "newest", 0) for n in (1, 2))
    assert one["mean_steps"] == one["steps"] and two["mean_steps"] < two["steps"]
    assert one["steps"] == serve(256, 1, victim=newest, patience=0)["steps"] < two["steps"]


def test_requests_of_an_engine():
    chats = engine_requests("chats", 20, 0, system_tokens=64)
    assert len({r.tokens[:64] for r in chats}) == 1 and len({r.tokens[64:] for r in chats}) == 20
    assert all(20 <= r.prompt_tokens - 64 <= 200 and 50 <= r.output_tokens <= 400 for r in chats)
    answers = engine_requests("long answers", 50, 0)
    assert all(800 <= r.prompt_tokens <= 1200 and 4000 <= r.output_tokens <= 6000 for r in answers)
    assert engine_requests("azure-conv", 5, 0)[0].arrival_ns == 0
    with pytest.raises(ValueError, match="traffic = 'azure'"):
        engine_requests("azure", 5, 0)


def test_pieces_of_blocks_and_slower_links_cost_time():
    setting = dict(traffic="answers", num_requests=60, num_blocks=900, preemption="swap")
    fast, pieces, slow = (serve_engine(**setting, **more)["seconds"] for more in ({}, dict(piece_ns=5000), dict(bus_rate=1e9)))
    assert fast < pieces < slow
