#!/bin/sh
# Makes a node know a new one, which does not run yet. Run it at each node that there is, one after the other.
set -eu
usage='usage: add-peer.sh CONFIG NEW-ID NEW-ADDRESS [--config FILE|--url URL]...
CONFIG: of the node on this machine, which is restarted; the options name all other nodes that run.'
config=${1:?"$usage"} id=${2:?"$usage"} address=${3:?"$usage"}
shift 3

cp -p "$config" "$config.new"
trap 'rm -f "$config.new"' EXIT
printf '\n[[peer]]\nid = "%s"\naddress = "%s"\n' "$id" "$address" >>"$config.new"
replicator config check "$config.new"
mv "$config.new" "$config"
"$(dirname "$0")/restart.sh" "$config" "$@"
