#!/bin/sh
# Makes a CA and the certificates of nodes, unless they are there: certificates.sh CA-DIRECTORY DIRECTORY NODE...
# Each node's own go to DIRECTORY/NODE, for the nodes' user. `replicator ca renew` replaces one that will expire.
set -eu

ca=$1 directory=$2
shift 2
[ -e "$ca/ca.pem" ] || replicator ca init --dir "$ca"
for node in "$@"; do
    [ -e "$ca/$node.pem" ] || replicator ca issue "$node" --dir "$ca" --host localhost >/dev/null
    for file in "$ca/$node.pem" "$ca/$node.key" "$ca/ca.pem"; do
        install -o "${OWNER:-mail-replicator}" -m 600 "$file" "$directory/$node/"
    done
    chown "${OWNER:-mail-replicator}" "$directory/$node"
done
