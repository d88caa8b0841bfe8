{{/* Name of the chart's objects; short enough for every suffix and for Kubernetes' 63 characters. */}}
{{- define "hypic.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default "hypic" .Values.nameOverride -}}
{{- $base := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- printf "%s-operator" ($base | trimSuffix "-operator" | trunc 45 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* Names of cluster-wide objects: two releases of one name may lie in two namespaces. */}}
{{- define "hypic.clusterName" -}}
{{ .Release.Namespace }}:{{ include "hypic.fullname" . }}
{{- end -}}

{{- define "hypic.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "hypic.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* What selects the operator's pods: never those of a HypicCluster, whatever it is called. */}}
{{- define "hypic.selector" -}}
app.kubernetes.io/name: hypic-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "hypic.labels" -}}
{{ include "hypic.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: hypic
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Reference of an image: the digest wins over the tag. */}}
{{- define "hypic.reference" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end -}}
{{- end -}}

{{- define "hypic.image" -}}
{{- $image := .Values.image -}}
{{- include "hypic.reference" (dict "repository" $image.repository "tag" (default .Chart.AppVersion $image.tag) "digest" $image.digest) -}}
{{- end -}}

{{/* Image of routers and agents: the operator's, unless it is set. A tag alone replaces the operator's digest. */}}
{{- define "hypic.fleetImage" -}}
{{- $own := .Values.image -}}
{{- $fleet := .Values.fleet.image -}}
{{- $same := and (not $fleet.repository) (not $fleet.tag) -}}
{{- $tag := default .Chart.AppVersion (or $fleet.tag (ternary "" $own.tag (ne $fleet.repository ""))) -}}
{{- $digest := or $fleet.digest (ternary $own.digest "" $same) -}}
{{- include "hypic.reference" (dict "repository" (default $own.repository $fleet.repository) "tag" $tag "digest" $digest) -}}
{{- end -}}

{{/* "true" where monitors are rendered, which is where the cluster has their kinds. */}}
{{- define "hypic.monitors" -}}
{{- if and .Values.metrics.monitors.enabled (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") -}}true{{- end -}}
{{- end -}}

{{/* "true" where pods carry scrape annotations: never together with monitors. */}}
{{- define "hypic.annotations" -}}
{{- if and .Values.metrics.annotations.enabled (not (include "hypic.monitors" .)) -}}true{{- end -}}
{{- end -}}
