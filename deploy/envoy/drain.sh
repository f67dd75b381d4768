#!/bin/sh
# Stops an Envoy without cutting an answer. SIGTERM alone ends it at once, and every stream with it.
#   drain.sh [ADMIN] [SETTLE] [LONGEST]
# ADMIN is Envoy's admin address (127.0.0.1:9901). For SETTLE seconds (5) new connections are still taken, while load
# balancers see that its health fails; then none is, and running requests may take up to LONGEST seconds (600).
# In Kubernetes this is the preStop hook, with terminationGracePeriodSeconds above both; with systemd it is ExecStop.
set -eu
admin="http://${1:-127.0.0.1:9901}"
settle="${2:-5}"
longest="${3:-600}"

curl -fsS -X POST "$admin/healthcheck/fail" >/dev/null # each connection is closed after its present request
sleep "$settle"
curl -fsS -X POST "$admin/drain_listeners" >/dev/null
while [ "$longest" -gt 0 ]; do
  running=$(curl -fsS "$admin/stats?filter=^http.clients.downstream_rq_active$" | cut -d ' ' -f 2)
  [ "${running:-0}" -eq 0 ] && break
  sleep 1
  longest=$((longest - 1))
done
curl -fsS -X POST "$admin/quitquitquit" >/dev/null
