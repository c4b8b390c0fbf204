"""SQL that users may run, and SQL that tries to do something else. `{store}` is the folder of the run's store."""

from __future__ import annotations

HARMLESS = tuple(
    line
    for line in """
SELECT count(*) FROM slices
WITH t AS (SELECT name FROM gpu) SELECT name, count(*) FROM t GROUP BY name ORDER BY 2 DESC LIMIT 2
DESCRIBE slices
SUMMARIZE SELECT dur_ns FROM slices
SHOW TABLES
EXPLAIN SELECT 1
EXPLAIN ANALYZE SELECT count(*) FROM slices
VALUES (1, 2)
WITH a AS (SELECT 1), b AS MATERIALIZED (SELECT * FROM A) SELECT * FROM b, (SELECT * FROM a UNION ALL FROM (WITH c AS (FROM b) FROM c))
SELECT current_date, today(), strftime(now(), '%Y'), random(), uuid()
SELECT * FROM range(3) r, generate_series(1, 2), unnest([1, 2]) u(x)
WITH RECURSIVE t(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM t WHERE a < 3) SELECT * FROM t
SELECT row_number() OVER (ORDER BY dur_ns), lag(dur_ns) OVER w, sum(dur_ns) OVER (PARTITION BY rank) FROM slices WINDOW w AS (ORDER BY id) LIMIT 1
SELECT args->>'grid' FROM gpu JOIN events USING (rank, segment, id) LIMIT 1
SELECT [x * 2 FOR x IN [1, 2]], list_transform([1], lambda x: x + 1), {'a': 1}.a
FROM slices SELECT name LIMIT 1
SELECT * FROM (PIVOT (SELECT rank, kind FROM tracks) ON kind IN ('thread', 'stream') USING count(*))
SELECT quantile_cont(dur_ns, 0.5), histogram(rank), string_agg(DISTINCT name, ',') FROM (FROM slices LIMIT 10)
SELECT * EXCLUDE (name), columns('na.*') FROM slices LIMIT 1
SELECT name FROM slices WHERE name LIKE '%a%' AND name ILIKE 'b' OR regexp_matches(name, 'x') UNION ALL SELECT 'x' LIMIT 1
SELECT s.name, (SELECT max(dur_ns) FROM slices t WHERE t.rank = s.rank) FROM slices s WHERE EXISTS (SELECT 1) AND rank IN (SELECT rank FROM steps) LIMIT 1
SELECT * FROM main.segments; -- with a comment
SELECT rank, count(*) FROM slices GROUP BY ROLLUP (rank)
SELECT name FROM slices USING SAMPLE 3
SELECT * FROM json_each('[1, 2]')
""".splitlines()  # noqa: E501
    if line
)

HARMFUL = tuple(
    line
    for line in """
EXPLAIN ANALYZE COPY slices TO '{store}/store.json'
EXPLAIN ANALYZE COPY (SELECT 1) TO '{store}/rank=00000/segment=0/slices.parquet' (FORMAT parquet)
/* a comment */ EXPLAIN ANALYZE COPY segments TO '{store}/store.json'
EXPLAIN (ANALYZE) COPY segments TO '{store}/store.json'
EXPLAIN ANALYZE DELETE FROM segments
EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1
EXPLAIN EXPLAIN ANALYZE DELETE FROM segments
COPY slices TO '{store}/store.json'
COPY (SELECT 1) TO '{store}/new.csv'
WITH d AS (DELETE FROM segments RETURNING *) SELECT * FROM d
WITH d AS (UPDATE segments SET rank = 0 RETURNING *) SELECT * FROM d
WITH d AS (INSERT INTO segments SELECT * FROM segments RETURNING *) SELECT * FROM d
SELECT * FROM (WITH d AS (DELETE FROM segments RETURNING rank) SELECT * FROM d)
SELECT (WITH d AS (DELETE FROM segments RETURNING rank) SELECT count(*) FROM d)
EXPLAIN ANALYZE WITH d AS (DELETE FROM segments RETURNING *) SELECT * FROM d
DELETE FROM segments
UPDATE segments SET rank = 0
TRUNCATE segments
MERGE INTO segments USING segments s ON true WHEN MATCHED THEN DELETE
DROP VIEW slices
CREATE TABLE a AS SELECT 1
CREATE TEMP TABLE a AS SELECT 1
CREATE OR REPLACE VIEW slices AS SELECT 1
CREATE MACRO f() AS 1
ATTACH '{store}/new.db'
DETACH memory
EXPORT DATABASE '{store}/new'
IMPORT DATABASE '{store}/new'
INSTALL httpfs
LOAD httpfs
SET memory_limit = '100GB'
RESET lock_configuration
PRAGMA enable_profiling
PRAGMA version
CALL enable_logging(storage = 'file', storage_path = '{store}')
SELECT * FROM enable_logging()
SELECT * FROM enable_profiling()
SELECT * FROM checkpoint()
SELECT * FROM truncate_duckdb_logs()
SELECT write_log('x')
SELECT nextval('x')
SELECT setseed(0.5)
SELECT sleep_ms(100000)
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM read_blob('{store}/store.json')
SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM read_json('{store}/store.json')
SELECT * FROM read_parquet('{store}/*/*/*.parquet')
SELECT * FROM parquet_metadata('{store}/*/*/*.parquet')
SELECT * FROM sniff_csv('/etc/passwd')
SELECT * FROM glob('/*')
SELECT * FROM '/etc/passwd'
SELECT * FROM "{store}/store.json"
SELECT * FROM (WITH "/etc/passwd" AS (SELECT 1) SELECT 1), "/etc/passwd"
SELECT * FROM (WITH "{store}/store.json" AS (SELECT 1) SELECT 1), "{store}/store.json"
WITH "{store}/store.json" AS (SELECT * FROM "{store}/store.json") SELECT * FROM "{store}/store.json"
WITH a AS (SELECT * FROM "{store}/store.json"), "{store}/store.json" AS (SELECT 1) SELECT * FROM a
WITH RECURSIVE "{store}/store.json" AS (FROM "{store}/store.json" UNION FROM "{store}/store.json") SELECT 1
DESCRIBE '/etc/passwd'
SUMMARIZE '/etc/passwd'
SELECT getenv('HOME')
SELECT * FROM query('SELECT 1')
SELECT * FROM query_table('segments')
SELECT * FROM json_execute_serialized_sql('{{}}')
SELECT * FROM duckdb_settings()
SELECT * FROM duckdb_secrets()
SELECT * FROM which_secret('s3://x', 's3')
SELECT * FROM pragma_database_size()
SELECT * FROM internal.communicating_names
SELECT * FROM information_schema.tables
SELECT * FROM python_map_function()
SELECT * FROM pandas_scan(1)
SELECT * FROM HARMLESS
SHOW DATABASES
SELECT 1; SELECT 2
SELECT 1; DROP VIEW slices
BEGIN
COMMIT
VACUUM
CHECKPOINT
USE memory
PREPARE p AS SELECT 1
EXECUTE p
SELECT ?
SELECT $1
;
-- nothing
SELEC 1
SELECT '
SELECT 1 /*
""".splitlines()
    if line
)
