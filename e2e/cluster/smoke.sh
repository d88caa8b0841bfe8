#!/bin/bash
# What tests take for granted of the lab, tried: cargo xtask cluster run -- bash e2e/cluster/smoke.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kubectl() { command kubectl --namespace smoke "$@"; }
trap 'command kubectl delete namespace smoke --wait=false > /dev/null' EXIT

ok() { echo "ok: $*"; }
fail() { echo "FAILED: $*" && exit 1; }
ask() { kubectl exec client -- /kube kubectl --server="http://$1" get --raw=/etc/hostname --request-timeout=3s; }
within() { # seconds, then a command that must succeed by then
  local end=$((SECONDS + $1))
  shift
  until "$@" > /dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.5
  done
}
refused() { ! ask "$1" > /dev/null 2>&1; }

command kubectl apply --server-side -f "$here/smoke.yaml" > /dev/null
kubectl rollout status deployment/server --timeout=60s > /dev/null || fail "a strict Deployment does not start"
kubectl wait --for=condition=Ready pod/client --timeout=60s > /dev/null || fail "a strict Pod does not start"
[ "$(kubectl get pods -l app=server -o 'jsonpath={.items[*].spec.nodeName}' | tr ' ' '\n' | sort -u | wc -l)" = 2 ] ||
  fail "the servers are not on two nodes"
ok "pods run as the strictest namespace asks for, on two nodes"

kubectl run lax --image=hypic.dev/kube:1 2>&1 | grep -q 'violates PodSecurity "restricted' ||
  fail "a lax Pod is admitted"
ok "a lax Pod is refused"

within 10 ask server.smoke.svc || fail "a pod does not reach a Service by its name"
for pod in $(kubectl get pods -l app=server -o 'jsonpath={.items[*].status.podIP}'); do
  within 10 ask "$pod:8080" || fail "a pod does not reach $pod"
done
ok "pods reach Services by name, and pods on either node"

within 10 curl --silent --fail --max-time 3 http://server.smoke.svc/etc/hostname ||
  fail "the lab does not reach a Service by its name"
ok "the lab reaches Services by name"

kubectl apply -f - > /dev/null <<'END'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server}
spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {friend: "yes"}}}]}]}
END
within 20 refused server.smoke.svc || fail "a policy does not keep a stranger out"
kubectl label pod client friend=yes > /dev/null
within 20 ask server.smoke.svc || fail "a policy keeps a friend out"
ok "network policies are enforced"

kubectl create secret generic token --from-literal=word=swordfish > /dev/null
log=$(dirname "$KUBECONFIG")/../logs/audit.log
grep '"username":"admin"' "$log" | grep '"resource":"secrets","namespace":"smoke"' | grep -q '"verb":"create"' ||
  fail "a write is not in the audit log"
! grep -q swordfish "$log" || fail "a secret is in the audit log"
ok "writes are in the audit log, secrets are not"
