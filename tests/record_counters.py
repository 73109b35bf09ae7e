"""Record what a GPU's own counters say, with Nsight Compute.  python tests/record_counters.py FILE [rungs]

Of the naive kernel; these figures are compared with those that are counted on a CPU: in tests/test_profile.py, and in
notebook 1. Or, with `rungs`, of every rung over a contiguous cache and over a pool: what limits it, in notebook 3.
"""

import io
import subprocess
import sys

import pandas as pd

from pagefault.benchmark import RUNGS, machine, naive_launch
from pagefault.works import Work, inputs, pool_of, works

COUNTERS = {
    "global load requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global store requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global store sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared load wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared load conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared store wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "bytes from DRAM": "dram__bytes_read.sum",
    "L1 busy (%)": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM busy (%)": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
WORKS = {w.name: w for w in (*works()[:2], Work("odd", (1, 15, 16, 17, 100, 1000), 8, 2, 80, "float16"))}


RUNG_COUNTERS = {
    "instructions": "smsp__inst_executed.sum",
    "global load requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "issue slots busy (%)": "smsp__issue_active.avg.pct_of_peak_sustained_elapsed",
    "DRAM busy (%)": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
RUNG_WORKS = [w for w in works() if w.name in ("W1", "W2", "W2 int8")]


def count(counters, launches, what):
    """A frame with a row a launch and counter. launches: the columns that name each; what: the launches, to be run again."""
    kernels = "regex:attention|softmax|split_kv|tensor_core"
    command = ["ncu", "--clock-control", "none", "--target-processes", "all", "-k", kernels, "--csv", "--print-units", "base",
               "--metrics", ",".join(counters.values()), sys.executable, __file__, "launch", what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    text = "\n".join(row for row in done.stdout.splitlines() if row.startswith('"'))
    table = pd.read_csv(io.StringIO(text), thousands=",", dtype={"Metric Value": str})
    rows = []
    for i, names in enumerate(launches):
        values = table[table["ID"] == i].set_index("Metric Name")["Metric Value"]
        rows += [names | dict(counter=name, value=values[counter].replace(",", "")) for name, counter in counters.items()]
    return pd.DataFrame(rows).assign(**machine(), command="python tests/record_counters.py (Nsight Compute)")


def main(path, what="naive"):
    naive = [dict(kernel="naive_attention", work=work) for work in WORKS]
    rungs = [dict(kernel=kernel, layout=layout, work=work.name) for work in RUNG_WORKS for kernel in work.rungs
             for layout in ("contiguous", "paged")]
    frame = count(COUNTERS, naive, what) if what == "naive" else count(RUNG_COUNTERS, rungs, what)
    frame.to_csv(path, index=False, lineterminator="\n")
    print(frame.drop(columns=["driver", "cuda", "cupy", "numpy", "command"]).to_string())


def launch_all(what):
    for work in WORKS.values() if what == "naive" else ():
        naive_launch(*inputs(work, 0), work.seq_lens)()
    for work in RUNG_WORKS if what == "rungs" else ():
        q, *cache = inputs(work, 0)
        *pool, tables = pool_of(cache, work.seq_lens, 16, "shuffled", 1)
        for kernel in work.rungs:
            RUNGS[kernel](q, *cache, work.seq_lens)()
            RUNGS[kernel](q, *pool, work.seq_lens, tables)()


if __name__ == "__main__":
    launch_all(sys.argv[2]) if sys.argv[1:2] == ["launch"] else main(*sys.argv[1:])
