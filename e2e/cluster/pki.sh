#!/bin/bash
# pki.sh DIR NODE..: a CA, the certificates of one cluster, and a kubeconfig for each client.
set -eu
dir=$1
shift
mkdir -p -m 700 "$dir"
cd "$dir"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key" 2>/dev/null; }

authority() { # name
  key "$1"
  openssl req -x509 -new -key "$1.key" -subj "/CN=$1" -days 3650 -out "$1.crt" 2>/dev/null
}

certificate() { # authority name subject usage [names]
  key "$2"
  printf 'extendedKeyUsage=%s\n%s' "$4" "${5:+subjectAltName=$5}" > "$2.ext"
  openssl req -new -key "$2.key" -subj "$3" 2>/dev/null |
    openssl x509 -req -CA "$1.crt" -CAkey "$1.key" -CAcreateserial -days 3650 -extfile "$2.ext" -out "$2.crt" 2>/dev/null
  rm "$2.ext"
}

client() { # name subject
  certificate ca "$1" "$2" clientAuth
  cat > "$1.kubeconfig" <<END
apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: $1}}]
clusters:
- name: lab
  cluster: {server: "https://10.90.0.1:6443", certificate-authority-data: $(base64 -w0 ca.crt)}
users:
- name: $1
  user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}
END
}

authority ca
certificate ca apiserver /CN=kube-apiserver serverAuth \
  IP:10.90.0.1,IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc
certificate ca apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet clientAuth
client admin /O=system:masters/CN=admin
client controller-manager /CN=system:kube-controller-manager
client scheduler /CN=system:kube-scheduler
client proxy /CN=system:kube-proxy
client kube-router /O=system:masters/CN=kube-router
client prometheus /CN=prometheus
for node in "$@"; do client "$node" "/O=system:nodes/CN=system:node:$node"; done
key service-accounts
openssl ec -in service-accounts.key -pubout -out service-accounts.pub 2>/dev/null
# The front proxy of aggregated APIs has a CA of its own.
authority front-ca
certificate front-ca front-proxy /CN=front-proxy-client clientAuth
