"""Runs at the start of every Python process of a captured job, then imports the sitecustomize that it hides.

Written for any Python 3: the job's interpreter may be older than rankscope's.
"""

import os
import sys


def _start(bootstrap):
    plan = os.environ.get("RANKSCOPE_PLAN")
    if not plan:
        return
    if sys.version_info < (3, 10):
        _say("Python 3.10 or newer is needed")
        return
    if "rankscope" not in sys.modules and _is_jobs():
        del os.environ["RANKSCOPE_PLAN"]
        _say("the job has a package of its own with the name rankscope")
        return
    import importlib.util

    # rankscope may be installed in another environment than the job's: load it from this folder, and add
    # nothing to sys.path.
    if "rankscope" not in sys.modules:
        package = os.path.dirname(os.path.dirname(bootstrap))
        spec = importlib.util.spec_from_file_location(
            "rankscope", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["rankscope"] = module
        spec.loader.exec_module(module)
    from rankscope.inapp.start_capture import start_capture

    start_capture(plan, bootstrap)


def _is_jobs():
    """Whether the script would import a rankscope of its own, which it gets."""
    # Python puts the script's folder, or with -m and -c the current one, in front of sys.path, but later
    for folder in [*map(os.path.dirname, sys.orig_argv[1:4]), *sys.path]:
        package = os.path.join(folder, "rankscope")
        if os.path.isfile(package + ".py") or os.path.isfile(package + "/__init__.py"):
            return not os.path.isdir(package + "/inapp")
    return False


def _say(text):
    try:
        sys.stderr.write("rankscope: not captured, the job goes on: %s\n" % (text,))
    except Exception:
        pass  # stderr is closed or full


def _import_hidden_sitecustomize():
    """Import the sitecustomize that this one hides. Its errors are not caught."""
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
except (Exception, SystemExit) as _error:  # a module of the job may have the name of one of Python's
    _say(repr(_error))
_import_hidden_sitecustomize()
