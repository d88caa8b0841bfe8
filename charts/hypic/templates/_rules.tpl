{{/* What the operator may do in a namespace that it watches, and nothing else. */}}
{{- define "hypic.rules" -}}
- apiGroups: [hypic.dev]
  resources: [hypicclusters, hypicmodels]
  verbs: [get, list, watch]
- apiGroups: [hypic.dev]
  resources: [hypicclusters/status, hypicmodels/status, hypicscatterpools/status]
  verbs: [patch]
- apiGroups: [hypic.dev]
  resources: [hypicscatterpools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# By name only: neither list nor watch.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [pods, persistentvolumeclaims]
  verbs: [get, list, watch]
# What keeps a StatefulSet from making pods is told nowhere else.
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- end -}}

{{/* Whom the roles are for. */}}
{{- define "hypic.subjects" -}}
- kind: ServiceAccount
  name: {{ include "hypic.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
