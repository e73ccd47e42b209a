-- What `savegame doctor` asks a server, by name. Read by checkup.py.

-- name: settings
SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN (
    'data_checksums', 'default_transaction_isolation', 'default_transaction_read_only', 'fsync', 'full_page_writes',
    'idle_in_transaction_session_timeout', 'lock_timeout', 'max_connections', 'server_version', 'standard_conforming_strings',
    'statement_timeout', 'synchronous_commit', 'synchronous_standby_names', 'transaction_timeout'
)
-- name: replicas
SELECT application_name, sync_state FROM pg_catalog.pg_stat_replication
-- name: session
SELECT
    extract(epoch FROM clock_timestamp())::float8,
    inet_client_addr() IS NULL OR inet_client_addr() <<= '127.0.0.0/8' OR inet_client_addr() <<= '::1/128',
    coalesce((SELECT ssl FROM pg_catalog.pg_stat_ssl WHERE pid = pg_backend_pid()), false),
    (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend')
