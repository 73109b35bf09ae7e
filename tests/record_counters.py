"""Record what a GPU's own counters say of the naive kernel, with Nsight Compute.  python tests/record_counters.py FILE

The figures are compared with those that are counted on a CPU: in tests/test_profile.py, and in notebook 1.
"""

import io
import subprocess
import sys

import pandas as pd

from pagefault.benchmark import Work, inputs, machine, naive_launch, works

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


def main(path):
    command = ["ncu", "--clock-control", "none", "--target-processes", "all", "-k", "regex:naive_attention", "--csv",
               "--print-units", "base", "--metrics", ",".join(COUNTERS.values()), sys.executable, __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    text = "\n".join(row for row in done.stdout.splitlines() if row.startswith('"'))
    table = pd.read_csv(io.StringIO(text), thousands=",", dtype={"Metric Value": str})
    rows = []
    for i, work in enumerate(WORKS):
        values = table[table["ID"] == i].set_index("Metric Name")["Metric Value"]
        rows += [dict(kernel="naive_attention", work=work, counter=name, value=values[counter].replace(",", ""))
                 for name, counter in COUNTERS.items()]
    frame = pd.DataFrame(rows).assign(**machine(), command="python tests/record_counters.py (Nsight Compute)")
    frame.to_csv(path, index=False, lineterminator="\n")
    print(frame[["work", "counter", "value"]].to_string())


def launch_all():
    for work in WORKS.values():
        naive_launch(*inputs(work, 0), work.seq_lens)()


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) > 1 else launch_all()
