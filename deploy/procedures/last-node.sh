#!/bin/sh
# At the only node that is left: copies what it has, then looks whether mail is missing. The node goes on serving.
set -eu
usage='usage: last-node.sh CONFIG BACKUP
CONFIG: of the node on this machine; BACKUP: a new directory on another disk.'
config=${1:?"$usage"} backup=${2:?"$usage"}

replicator health --live --config "$config"
failed=0
replicator backup --to "$backup" --config "$config" || failed=1
test -f "$backup/manifest.jsonl" # without it there is no backup
replicator check --config "$config" || failed=1
replicator scrub --config "$config" || failed=1
exit "$failed"
