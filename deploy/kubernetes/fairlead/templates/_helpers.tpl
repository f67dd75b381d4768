{{- define "fairlead.name" -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end }}

{{- define "fairlead.pool" -}}
{{- .Values.inferencePool.name | default (include "fairlead.name" .) -}}
{{- end }}

{{- define "fairlead.account" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "fairlead.name" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end -}}
{{- end }}

{{- define "fairlead.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion -}}
{{- end }}

{{- define "fairlead.selector" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fairlead.labels" -}}
{{ include "fairlead.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "fairlead.store" -}}
{{- if .Values.redis.url }}{{ .Values.redis.url }}
{{- else if .Values.redis.enabled }}redis://{{ include "fairlead.name" . }}-redis:6379/0
{{- else }}memory{{ end -}}
{{- end }}

{{- define "fairlead.isStandalone" -}}
{{- if eq .Values.mode "standalone" }}yes{{ end -}}
{{- end }}

{{/* A quantity of Kubernetes, in bytes. */}}
{{- define "fairlead.bytes" -}}
{{- $unit := regexFind "[A-Za-z]*$" (toString .) -}}
{{- $factors := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 -}}
{{- mulf (trimSuffix $unit (toString .) | float64) (get $factors $unit) | int64 -}}
{{- end }}

{{/* The configuration: what the chart knows, and over it what the user writes. */}}
{{- define "fairlead.config" -}}
{{- $listen := dict "admin" "0.0.0.0:9003" "drain_s" .Values.drainSeconds -}}
{{- $gateway := dict -}}
{{- $found := dict -}}
{{- if include "fairlead.isStandalone" . -}}
{{- $_ := set $listen "grpc" "unix:/run/fairlead/fairlead.sock" -}}
{{- $_ := set $gateway "listen" "0.0.0.0:8080" -}}
{{- with dig "resources" "limits" "memory" "" .Values.envoy -}}
{{- $_ := set $gateway "memory_bytes" (include "fairlead.bytes" . | int64) -}}
{{- end -}}
{{- if ne (dig "gateway" "endpoints" "eds" .Values.config) "static" -}}
{{- $_ := set $gateway "remember" "/run/fairlead/pool" -}}
{{- end -}}
{{- if .Values.modelServers.service -}}
{{- $_ := set $found "service" .Values.modelServers.service -}}
{{- else -}}
{{- $labels := list -}}
{{- range $key, $value := .Values.modelServers.matchLabels }}{{ $labels = append $labels (printf "%s=%s" $key $value) }}{{ end -}}
{{- $_ := set $found "selector" (join "," $labels) -}}
{{- $_ := set $found "ports" .Values.modelServers.targetPorts -}}
{{- end -}}
{{- else -}}
{{- $_ := set $listen "grpc" "0.0.0.0:9002" -}}
{{- $_ := set $gateway "fallbacks" 0 -}}
{{- $_ := set $found "inference_pool" (include "fairlead.pool" .) -}}
{{- if eq .Values.tls.mode "selfSigned" -}}
{{- $_ := set $listen "tls" (dict "self_signed" true) -}}
{{- else if eq .Values.tls.mode "secret" -}}
{{- $_ := set $listen "tls" (dict "certificate" "/etc/fairlead-tls/tls.crt" "key" "/etc/fairlead-tls/tls.key") -}}
{{- end -}}
{{- end -}}
{{- $config := dict "listen" $listen "gateway" $gateway "discovery" (dict "kubernetes" $found) -}}
{{- if ne (include "fairlead.store" .) "memory" -}}
{{- $_ := set $config "sessions" (dict "store" (include "fairlead.store" .)) -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml -}}
{{- end }}
