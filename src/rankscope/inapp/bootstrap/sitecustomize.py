"""Runs at the start of every Python process of a captured job, then hands over to the sitecustomize it stands
before.

Kept to what any Python 3 can read: the job's interpreter may be older than rankscope's.
"""

import os
import sys


def _start(bootstrap):
    plan = os.environ.get("RANKSCOPE_PLAN")
    if not plan:
        return
    if sys.version_info < (3, 10):
        sys.stderr.write("rankscope: not captured, the job goes on: Python 3.10 or newer is needed\n")
        return
    import importlib.util

    # rankscope may live in another environment than the job's: load it from where it is, and add nothing to
    # sys.path.
    if "rankscope" not in sys.modules:
        package = os.path.dirname(os.path.dirname(bootstrap))
        spec = importlib.util.spec_from_file_location(
            "rankscope", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["rankscope"] = module
        spec.loader.exec_module(module)
    from rankscope.inapp.arm import arm

    arm(plan, bootstrap)


def _hand_over():
    """Import the sitecustomize that would have been found without us; its errors are its own."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _here]
try:
    _start(_here)
except Exception as _error:
    sys.stderr.write("rankscope: not captured, the job goes on: %r\n" % (_error,))
_hand_over()
