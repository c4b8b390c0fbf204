"""A user's mistakes that type checkers must report; each `type: ignore` is checked to be needed."""

import rankscope

run = rankscope.open("RUN")
run.kernels(by="colour")  # type: ignore[arg-type]
run.steps(by="rank")  # type: ignore[call-arg]
run.no_such_report()  # type: ignore[attr-defined]
rankscope.opne("RUN")  # type: ignore[attr-defined]
rankscope.open("RUN", clocks="wall")  # type: ignore[arg-type]
run.steps().rows.sort()  # type: ignore[attr-defined]
run.steps().rows[0]["step"] = 1  # type: ignore[index]
