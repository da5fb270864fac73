#!/bin/sh
# What a primary with a standby has besides (deploy/compose.ha.yaml): a role for the standby, and the database of the
# installation on the Redis Cluster.
set -eu
psql --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" --set=ON_ERROR_STOP=1 <<'END'
CREATE ROLE replication LOGIN REPLICATION PASSWORD 'replication';
CREATE DATABASE cluster;
\connect cluster
CREATE SCHEMA notification AUTHORIZATION notificationowner;
END
echo 'host replication replication all scram-sha-256' >> "$PGDATA/pg_hba.conf"
