"""What every analysis is built from: Result, Report, Scope, severities, notes, the cache, intervals, a rank's activity.

Imports the store and nothing else of analysis; every other analysis package imports it.
"""
