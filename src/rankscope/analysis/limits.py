def limits_of(run, scope, findings):
    return tuple(findings)
