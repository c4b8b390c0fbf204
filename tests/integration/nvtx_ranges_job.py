"""A job without torch or a GPU: every kind of NVTX event, system calls, and MPI if asked for."""

import ctypes
import sys
import time

import nvtx


def ranges() -> None:
    for step in range(3):
        with nvtx.annotate(f"step {step}"):
            with nvtx.annotate("load", domain="data", color="blue"):
                time.sleep(0.002)
            with nvtx.annotate("inner, with a comma"):
                time.sleep(0.001)
        nvtx.mark("between steps")
    crossing = nvtx.start_range("crossing")
    with nvtx.annotate("last"):
        nvtx.end_range(crossing)
    nvtx.push_range("never closed")


def mpi() -> None:
    """Call OpenMPI through ctypes, without compiling. nsys intercepts its global symbols."""
    library = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
    everything = ctypes.CDLL(None)

    def constant(name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, name)))

    world, double, add = map(constant, ("ompi_mpi_comm_world", "ompi_mpi_double", "ompi_mpi_op_sum"))
    sent, received, rank = (ctypes.c_double * 100)(), (ctypes.c_double * 100)(), ctypes.c_int()
    everything.MPI_Init(None, None)
    everything.MPI_Comm_rank(world, ctypes.byref(rank))
    everything.MPI_Allreduce(sent, received, 100, double, add, world)
    if rank.value == 0:
        everything.MPI_Send(sent, 100, double, 1, 7, world)
    elif rank.value == 1:
        everything.MPI_Recv(received, 100, double, 0, 7, world, None)
    everything.MPI_Barrier(world)
    everything.MPI_Finalize()


ranges()
if "--mpi" in sys.argv:
    mpi()
