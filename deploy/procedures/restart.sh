#!/bin/sh
# Restarts a node, or upgrades it; clients go to other nodes meanwhile. Run it at one node after the other.
set -eu
usage='usage: [INSTALL=COMMAND] [KICK_AFTER=10m] [WAIT=30m] restart.sh CONFIG [--config FILE|--url URL]...
CONFIG: of the node on this machine; the options name all other nodes. INSTALL runs while the node is stopped.'
config=${1:?"$usage"}
shift
wait=${WAIT:-30m}
unit=mail-replicator@$(basename "$config" .toml)

replicator config check "$config"
others=$#
while [ "$others" -gt 0 ]; do # only one node is away at a time
    replicator health --wait "$wait" "$1" "${2:?"$usage"}"
    set -- "$@" "$1" "$2"
    shift 2
    others=$((others - 2))
done
if ! timeout "$wait" replicator drain --kick-after "${KICK_AFTER:-10m}" --config "$config"; then
    replicator drain --undo --config "$config"
    exit 1
fi
systemctl stop "$unit"
failed=0
sh -c "${INSTALL:-:}" || failed=$?
systemctl start "$unit"
replicator health --wait "$wait" --config "$config"
exit "$failed"
