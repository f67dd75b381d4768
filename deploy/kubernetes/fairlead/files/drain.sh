#!/bin/bash
# The preStop hook of Envoy's container: no answer is cut. Envoy's image has no curl, but bash opens sockets itself.
#   drain.sh SETTLE LONGEST     seconds in which load balancers notice; most seconds that running requests may take
ask() {
  exec 3<>/dev/tcp/127.0.0.1/9901 || return 1
  printf '%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}
ask POST /healthcheck/fail >/dev/null
sleep "$1"
ask POST /drain_listeners >/dev/null
for ((left = $2; left > 0; left--)); do
  running=$(ask GET '/stats?filter=^http.clients.downstream_rq_active$') || break
  [[ $running =~ downstream_rq_active:\ 0 ]] && break
  sleep 1
done
