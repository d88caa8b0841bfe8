"""Cases of the chart hypic: settings, rights, restricted namespaces, images, monitoring."""

import json
import unittest

import kubernetes_validate
import yaml

from render import CHARTS, MONITORING, Loader, Refused, flags_of, helm_template, of_kind, pod, render, rendered_tests


class Fields(unittest.TestCase):
    def test_every_field_is_one_that_kubernetes_knows(self):
        for name, (flags, options) in rendered_tests().items():
            for found in render(*flags, **options):
                if found["apiVersion"] == MONITORING:
                    continue
                with self.subTest(values=name, object=f"{found['kind']}/{found['metadata']['name']}"):
                    kubernetes_validate.validate(found, "1.37", strict=True)

    def test_names_stay_within_63_characters(self):
        for release in ("r" * 53, "x", "hypic", "my-hypic-operator"):
            for found in render("--set", "replicas=2", release=release, kinds=(MONITORING,)):
                if "rbac" not in found["apiVersion"]:
                    with self.subTest(release=release, kind=found["kind"]):
                        self.assertLessEqual(len(found["metadata"]["name"]), 63)

    def test_two_releases_of_one_name_share_no_cluster_wide_object(self):
        names = [
            {found["metadata"]["name"] for found in render(namespace=namespace) if "namespace" not in found["metadata"]}
            for namespace in ("a", "b")
        ]
        self.assertTrue(names[0])
        self.assertFalse(names[0] & names[1])


class ServiceLinks(unittest.TestCase):
    """Services of the namespace do not become settings."""

    def test_the_pod_gets_no_variables_of_services(self):
        self.assertIs(pod(render())["spec"]["enableServiceLinks"], False)

    def test_the_operator_is_set_by_flags_alone(self):
        (container,) = pod(render())["spec"]["containers"]
        self.assertFalse([entry["name"] for entry in container["env"] if entry["name"].startswith("HYPIC")])


class LockedDownNamespaces(unittest.TestCase):
    def test_the_pod_is_restricted(self):
        spec = pod(render())["spec"]
        self.assertIs(spec["securityContext"]["runAsNonRoot"], True)
        self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
        for container in spec["containers"]:
            context = container["securityContext"]
            self.assertIs(context["allowPrivilegeEscalation"], False)
            self.assertIs(context["readOnlyRootFilesystem"], True)
            self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
        self.assertFalse({"hostNetwork", "hostPID", "hostIPC", "volumes"} & spec.keys())

    def test_the_user_is_left_to_the_cluster_and_can_be_set(self):
        spec = pod(render())["spec"]
        for context in (spec["securityContext"], spec["containers"][0]["securityContext"]):
            self.assertFalse({"runAsUser", "runAsGroup", "fsGroup"} & context.keys())
        set_spec = pod(render(values="podSecurityContext: {runAsUser: 1000690000, fsGroup: 1000690000}"))["spec"]
        self.assertEqual(set_spec["securityContext"]["runAsUser"], 1000690000)
        self.assertIs(set_spec["securityContext"]["runAsNonRoot"], True)

    def test_every_container_has_requests_and_limits_of_all_that_a_quota_may_count(self):
        for container in pod(render())["spec"]["containers"]:
            for side in ("requests", "limits"):
                self.assertEqual({"cpu", "memory", "ephemeral-storage"}, container["resources"][side].keys())

    def test_resources_can_be_set(self):
        values = "resources: {limits: {cpu: 1, memory: 1Gi}}"
        limits = pod(render(values=values))["spec"]["containers"][0]["resources"]["limits"]
        self.assertEqual(limits, {"cpu": 1, "memory": "1Gi", "ephemeral-storage": "64Mi"})


class NumbersThroughHelm(unittest.TestCase):
    def refused(self, named, *flags, **options):
        with self.assertRaises(Refused) as caught:
            render(*flags, **options)
        self.assertIn(named, str(caught.exception))

    def test_numbers_out_of_bounds_are_refused_by_name(self):
        for value in ("1000000", "17179869184", "9007199254740993", "0", "1.5"):
            for key in ("replicas", "signalSeconds", "networkPolicy.apiServerPorts[0]"):
                if key == "signalSeconds" and value == "1.5":
                    continue
                path = "/" + key.replace(".", "/").replace("[0]", "/0")
                with self.subTest(key=key, value=value):
                    self.refused(path, "--set", f"{key}={value}")
                    parent, _, leaf = key.partition(".")
                    text = f"{parent}: {{apiServerPorts: [{value}]}}" if leaf else f"{key}: {value}"
                    self.refused(path, values=text)

    def test_numbers_within_bounds_are_plain(self):
        objects = render(values="signalSeconds: 300\nreplicas: 3\nnetworkPolicy: {apiServerPorts: [65535]}")
        self.assertEqual(flags_of(objects)["--signal-seconds"], ["300"])
        self.assertEqual(of_kind(objects, "Deployment")[0]["spec"]["replicas"], 3)
        egress = of_kind(objects, "NetworkPolicy")[0]["spec"]["egress"]
        self.assertEqual(egress[0]["ports"][0]["port"], 65535)

    def test_tags_that_look_like_numbers_stay_text(self):
        for tag in ("1e3", "20261129", "0123", "0x10", "1_000", "true", "null", "1.10"):
            with self.subTest(tag=tag):
                objects = render("--set-string", f"image.tag={tag}")
                image = pod(objects)["spec"]["containers"][0]["image"]
                self.assertEqual(image, f"hypic.dev/hypic:{tag}")
                self.assertEqual(flags_of(objects)["--image"], [image])

    def test_tags_that_are_numbers_are_refused(self):
        for text in ("image: {tag: 1e3}", "image: {tag: 20261129}", "fleet: {image: {tag: 0123}}"):
            with self.subTest(values=text):
                self.refused("/image/tag", values=text)

    def test_sizes_are_strings(self):
        self.refused("/resources/limits/memory", values="resources: {limits: {memory: 17179869184}}")
        self.refused("/resources/requests/memory", "--set", "resources.requests.memory=1000000")
        self.refused("/resources/limits/memory", values="resources: {limits: {memory: 1 GiB}}")

    def test_labels_and_annotations_are_strings_and_stay_so(self):
        for value in ("true", "1", "1e3", "null"):
            flags = [
                "--set-string", f"podAnnotations.a={value}",
                "--set-string", f"podLabels.a={value}",
                "--set-string", f"dashboards.annotations.a={value}",
                "--set-string", f"metrics.monitors.labels.a={value}",
                "--set-string", f"serviceAccount.annotations.a={value}",
            ]
            with self.subTest(value=value):
                objects = render(*flags, kinds=(MONITORING,))
                template = pod(objects)["metadata"]
                self.assertEqual(template["annotations"]["a"], value)
                self.assertEqual(template["labels"]["a"], value)
                for kind, where in (("ConfigMap", "annotations"), ("PodMonitor", "labels"), ("ServiceAccount", "annotations")):
                    self.assertEqual(of_kind(objects, kind)[0]["metadata"][where]["a"], value)
        self.refused("/podAnnotations/a", "--set", "podAnnotations.a=true")

    def test_unknown_keys_are_refused_at_every_depth(self):
        for key in ("replica", "image.name", "fleet.tag", "metrics.rules.runbook", "rbac.enabled", "dashboards.label"):
            with self.subTest(key=key):
                self.refused(f"'{key.split('.')[-1]}' not allowed", "--set", f"{key}=x")

    def test_null_and_empty_render_or_are_refused_by_name(self):
        defaults = yaml.load((CHARTS / "hypic/values.yaml").read_text(), Loader)
        for key in defaults:
            for flag in (f"{key}=null", f"{key}="):
                with self.subTest(flag=flag):
                    try:
                        render("--set", flag, kinds=(MONITORING,))
                    except Refused as refused:
                        self.assertIn("values don't meet the specifications", str(refused))
                        self.assertIn(key, str(refused))

    def test_null_of_what_may_be_missing_is_as_if_it_were_empty(self):
        optional = (
            "watchNamespaces", "otlp", "extraArgs", "extraEnv", "nameOverride", "fullnameOverride", "podLabels",
            "podAnnotations", "priorityClassName", "nodeSelector", "tolerations", "affinity",
            "topologySpreadConstraints",
        )
        plain = helm_template()
        for key in optional:
            with self.subTest(key=key):
                self.assertEqual(helm_template("--set", f"{key}=null"), plain)


class Images(unittest.TestCase):
    """Private registries: what is set reaches the operator and everything that it makes."""

    DIGEST = "sha256:" + "0123456789abcdef" * 4

    def images(self, *flags):
        objects = render(*flags)
        (container,) = pod(objects)["spec"]["containers"]
        return container["image"], flags_of(objects)["--image"][0]

    def test_the_default_is_one_image_of_the_charts_version(self):
        version = yaml.load((CHARTS / "hypic/Chart.yaml").read_text(), Loader)["appVersion"]
        self.assertEqual(self.images(), (f"hypic.dev/hypic:{version}",) * 2)

    def test_a_repository_with_a_port_reaches_both(self):
        flag = "image.repository=registry.example:5000/mirror/hypic"
        self.assertEqual(self.images("--set", flag), ("registry.example:5000/mirror/hypic:0.1.0",) * 2)

    def test_a_digest_wins_over_a_tag(self):
        flags = ("--set", "image.tag=v1", "--set", f"image.digest={self.DIGEST}")
        self.assertEqual(self.images(*flags), (f"hypic.dev/hypic@{self.DIGEST}",) * 2)

    def test_the_fleet_may_have_an_image_of_its_own(self):
        own = ("--set", f"image.digest={self.DIGEST}")
        cases = (
            ("fleet.image.tag=v2", "hypic.dev/hypic:v2"),
            ("fleet.image.repository=r.example/cuda", "r.example/cuda:0.1.0"),
            (f"fleet.image.digest={self.DIGEST[:-1]}0", f"hypic.dev/hypic@{self.DIGEST[:-1]}0"),
        )
        for flag, expected in cases:
            with self.subTest(flag=flag):
                operator, fleet = self.images(*own, "--set", flag)
                self.assertEqual(operator, f"hypic.dev/hypic@{self.DIGEST}")
                self.assertEqual(fleet, expected)

    def test_pull_secrets_reach_the_operator_and_the_pods_it_makes(self):
        objects = render("--set", "image.pullSecrets[0].name=regcred", "--set", "image.pullSecrets[1].name=other")
        self.assertEqual(pod(objects)["spec"]["imagePullSecrets"], [{"name": "regcred"}, {"name": "other"}])
        self.assertEqual(flags_of(objects)["--image-pull-secret"], ["regcred", "other"])

    def test_pull_secrets_and_policy_of_the_fleet_win(self):
        objects = render(
            "--set", "image.pullSecrets[0].name=regcred",
            "--set", "fleet.image.pullSecrets[0].name=theirs",
            "--set", "fleet.image.pullPolicy=Never",
        )
        self.assertEqual(flags_of(objects)["--image-pull-secret"], ["theirs"])
        self.assertEqual(flags_of(objects)["--image-pull-policy"], ["Never"])
        self.assertEqual(pod(objects)["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent")

    def test_no_other_image_is_named(self):
        names = {line.split(":", 1)[0].strip() for line in helm_template().splitlines() if "image" in line.lower()}
        self.assertEqual(names, {"image", "imagePullPolicy", '- "--image=hypic.dev/hypic', '- "--image-pull-policy=IfNotPresent"'})

    def test_a_repository_with_a_tag_in_it_is_refused(self):
        with self.assertRaises(Refused) as caught:
            render("--set", "image.repository=r.example/hypic:v1")
        self.assertIn("/image/repository", str(caught.exception))


def may(rules):
    """{(group, resource, verb)} of rules without names."""
    return {
        (group, resource, verb)
        for rule in rules
        if "resourceNames" not in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


class Rights(unittest.TestCase):
    def test_the_operator_may_do_no_more_than_it_needs(self):
        (role,) = [r for r in of_kind(render("--set", "rbac.aggregate=false"), "ClusterRole")]
        rights = may(role["rules"])
        self.assertFalse([right for right in rights if "*" in right])
        self.assertFalse([right for right in rights if right[2] in ("update", "deletecollection", "escalate", "bind", "impersonate")])
        self.assertFalse([right for right in rights if right[1].startswith(("roles", "clusterroles", "nodes", "pods/"))])
        self.assertEqual({verb for _, resource, verb in rights if resource == "secrets"}, {"get", "create", "patch"})
        for kind in ("hypicclusters", "hypicmodels"):
            self.assertEqual({verb for _, resource, verb in rights if resource == kind}, {"get", "list", "watch"})
        named = [rule for rule in role["rules"] if "resourceNames" in rule]
        self.assertEqual([(rule["resources"], rule["verbs"]) for rule in named], [(["customresourcedefinitions"], ["get"])])

    def test_watched_namespaces_get_roles_and_the_rest_of_the_cluster_none(self):
        objects = render("--set", "watchNamespaces={a,b}", "--set", "rbac.aggregate=false")
        (cluster_role,) = of_kind(objects, "ClusterRole")
        self.assertEqual(may(cluster_role["rules"]), set())
        everywhere = of_kind(render("--set", "rbac.aggregate=false"), "ClusterRole")[0]
        roles = {role["metadata"]["namespace"]: role for role in of_kind(objects, "Role")}
        self.assertEqual(roles.keys(), {"a", "b", "hypic-system"})
        for namespace in ("a", "b"):
            self.assertEqual(may(roles[namespace]["rules"]), may(everywhere["rules"]))
        self.assertEqual(flags_of(objects)["--watch-namespaces"], ["a,b"])

    def test_the_lease_is_the_releases_own(self):
        for release in ("hypic", "other"):
            objects = render(release=release)
            (lease,) = flags_of(objects)["--lease-name"]
            (role,) = of_kind(objects, "Role")
            self.assertEqual(role["metadata"]["namespace"], "hypic-system")
            named = [rule for rule in role["rules"] if "resourceNames" in rule]
            self.assertEqual([(rule["resourceNames"], rule["verbs"]) for rule in named], [([lease], ["get", "update"])])
            self.assertEqual(may(role["rules"]), {("coordination.k8s.io", "leases", "create")})

    def test_every_binding_names_a_role_and_an_account_that_are_there(self):
        for flags in ((), ("--set", "watchNamespaces={a}"), ("--set", "serviceAccount.create=false", "--set", "serviceAccount.name=mine")):
            objects = render(*flags)
            account = pod(objects)["spec"]["serviceAccountName"]
            there = {(found["kind"], found["metadata"]["name"], found["metadata"].get("namespace")) for found in objects}
            for kind in ("RoleBinding", "ClusterRoleBinding"):
                for binding in of_kind(objects, kind):
                    role = binding["roleRef"]
                    self.assertIn((role["kind"], role["name"], binding["metadata"].get("namespace")), there)
                    self.assertEqual([subject["name"] for subject in binding["subjects"]], [account])

    def test_an_account_without_a_name_is_refused(self):
        with self.assertRaises(Refused) as caught:
            render("--set", "serviceAccount.create=false")
        self.assertIn("serviceAccount.name", str(caught.exception))


class Replicas(unittest.TestCase):
    def test_a_budget_comes_with_the_second_replica(self):
        self.assertEqual(of_kind(render(), "PodDisruptionBudget"), [])
        (budget,) = of_kind(render("--set", "replicas=2"), "PodDisruptionBudget")
        self.assertEqual(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow")


def selects(selector, labels):
    """Whether match labels select labels."""
    return selector.items() <= labels.items()


# A pod that the operator makes for a HypicCluster that is called like the release.
FLEET_POD = {
    "app.kubernetes.io/name": "hypic",
    "app.kubernetes.io/instance": "hypic",
    "app.kubernetes.io/component": "combine",
    "app.kubernetes.io/managed-by": "hypic-operator",
    "hypic.dev/cluster": "hypic",
    "hypic.dev/pool": "combine",
}


class ScrapedOnce(unittest.TestCase):
    def targets(self, objects):
        """How often monitors and annotations scrape the operator's pod and a pod of a fleet."""
        template = pod(objects)["metadata"]
        operator = int("prometheus.io/scrape" in template.get("annotations", {}))
        (fleet_flag,) = flags_of(objects)["--pod-scrape-annotations"]
        fleet = int(fleet_flag == "true")
        for monitor in of_kind(objects, "ServiceMonitor"):
            for service in of_kind(objects, "Service"):
                if selects(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]):
                    ports = {port["name"] for port in service["spec"]["ports"]}
                    operator += sum(end["port"] in ports for end in monitor["spec"]["endpoints"])
        for monitor in of_kind(objects, "PodMonitor"):
            selector = monitor["spec"]["selector"]["matchLabels"]
            operator += selects(selector, template["labels"])
            fleet += selects(selector, FLEET_POD) * len(monitor["spec"]["podMetricsEndpoints"])
        return operator, fleet

    def test_each_pod_is_scraped_once_whatever_the_cluster_has_and_the_values_say(self):
        for kinds in ((), (MONITORING,)):
            for monitors in ("true", "false"):
                with self.subTest(kinds=kinds, monitors=monitors):
                    objects = render("--set", f"metrics.monitors.enabled={monitors}", kinds=kinds)
                    self.assertEqual(self.targets(objects), (1, 1))

    def test_annotations_can_be_left_out(self):
        objects = render("--set", "metrics.annotations.enabled=false")
        self.assertEqual(self.targets(objects), (0, 0))

    def test_annotations_of_the_user_do_not_bring_a_second_scrape(self):
        objects = render("--set", "podAnnotations.note=x", kinds=(MONITORING,))
        self.assertEqual(self.targets(objects), (1, 1))

    def test_services_and_policies_of_the_operator_leave_pods_of_fleets_alone(self):
        objects = render("--set", "replicas=2", kinds=(MONITORING,))
        operator = pod(objects)["metadata"]["labels"]
        selectors = [service["spec"]["selector"] for service in of_kind(objects, "Service")]
        selectors += [policy["spec"]["podSelector"]["matchLabels"] for policy in of_kind(objects, "NetworkPolicy")]
        selectors += [found["spec"]["selector"]["matchLabels"] for found in objects if found["kind"] in ("Deployment", "PodDisruptionBudget")]
        for selector in selectors:
            self.assertTrue(selects(selector, operator))
            self.assertFalse(selects(selector, FLEET_POD))

    def test_labels_of_the_user_cannot_undo_the_selector(self):
        values = "podLabels: {app.kubernetes.io/name: other, team: serving}"
        labels = pod(render(values=values))["metadata"]["labels"]
        self.assertEqual(labels["app.kubernetes.io/name"], "hypic-operator")
        self.assertEqual(labels["team"], "serving")

    def test_two_releases_with_namespaces_of_their_own_share_no_target(self):
        seen = []
        for release, namespace in (("one", "a"), ("two", "b")):
            objects = render("--set", f"watchNamespaces={{{namespace}}}", release=release, kinds=(MONITORING,))
            (monitor,) = of_kind(objects, "PodMonitor")
            seen.append(monitor["spec"]["namespaceSelector"])
            (service_monitor,) = of_kind(objects, "ServiceMonitor")
            self.assertEqual(service_monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"], release)
        self.assertEqual(seen, [{"matchNames": ["a"]}, {"matchNames": ["b"]}])

    def test_labels_tell_clusters_pools_and_components_apart(self):
        (monitor,) = of_kind(render(kinds=(MONITORING,)), "PodMonitor")
        (end,) = monitor["spec"]["podMetricsEndpoints"]
        self.assertEqual({rule["targetLabel"] for rule in end["relabelings"]}, {"hypic_cluster", "hypic_pool", "component"})

    def test_what_the_operator_says_of_a_namespace_is_kept(self):
        (monitor,) = of_kind(render(kinds=(MONITORING,)), "ServiceMonitor")
        self.assertIs(monitor["spec"]["endpoints"][0]["honorLabels"], True)


class Network(unittest.TestCase):
    def test_only_probes_and_metrics_come_in(self):
        (policy,) = of_kind(render(), "NetworkPolicy")
        self.assertEqual(policy["spec"]["policyTypes"], ["Ingress", "Egress"])
        self.assertEqual(policy["spec"]["ingress"], [{"ports": [{"port": 8080, "protocol": "TCP"}]}])

    def test_only_the_api_server_names_and_the_control_ports_of_fleets_are_reached(self):
        (policy,) = of_kind(render(), "NetworkPolicy")
        ports = [[port["port"] for port in rule["ports"]] for rule in policy["spec"]["egress"]]
        self.assertEqual(ports, [[443, 6443], [53, 53], [7400]])
        (peer,) = policy["spec"]["egress"][2]["to"]
        self.assertTrue(selects(peer["podSelector"]["matchLabels"], FLEET_POD))

    def test_a_collector_is_reached(self):
        (policy,) = of_kind(render("--set", "otlp=http://collector.observability:4317"), "NetworkPolicy")
        self.assertEqual(policy["spec"]["egress"][3]["ports"], [{"port": 4317, "protocol": "TCP"}])

    def test_scrapes_can_be_held_to_namespaces(self):
        flag = r"metrics.fromNamespaceLabels.kubernetes\.io/metadata\.name=monitoring"
        (policy,) = of_kind(render("--set", flag), "NetworkPolicy")
        (rule,) = policy["spec"]["ingress"]
        labels = {"kubernetes.io/metadata.name": "monitoring"}
        self.assertEqual(rule["from"], [{"namespaceSelector": {"matchLabels": labels}}])

    def test_the_policy_can_be_left_out(self):
        self.assertEqual(of_kind(render("--set", "networkPolicy.enabled=false"), "NetworkPolicy"), [])


class RulesAndDashboards(unittest.TestCase):
    RUNBOOKS = CHARTS.parent / "docs/runbooks"

    def rules(self, *flags):
        (found,) = of_kind(render(*flags, kinds=(MONITORING,)), "PrometheusRule")
        return [rule for group in found["spec"]["groups"] for rule in group["rules"]]

    def test_the_rule_object_is_the_file(self):
        file = yaml.load((CHARTS / "hypic/rules/hypic.yaml").read_text(), Loader)
        self.assertEqual(self.rules(), [rule for group in file["groups"] for rule in group["rules"]])

    def test_there_are_seven_alerts_and_each_has_a_runbook(self):
        alerts = [rule for rule in self.rules() if "alert" in rule]
        self.assertEqual(len(alerts), 7)
        for alert in alerts:
            self.assertEqual(alert["annotations"]["runbook_url"], f"docs/runbooks/{alert['alert']}.md")
            self.assertTrue((self.RUNBOOKS / f"{alert['alert']}.md").is_file(), alert["alert"])
            self.assertIn(alert["labels"]["severity"], ("critical", "warning"))

    def test_runbooks_can_lie_elsewhere(self):
        for prefix in ("https://runbooks.example/hypic", "https://runbooks.example/hypic/"):
            for rule in self.rules("--set", f"metrics.rules.runbooks={prefix}"):
                if "alert" in rule:
                    self.assertEqual(rule["annotations"]["runbook_url"], f"https://runbooks.example/hypic/{rule['alert']}.md")

    def test_rules_and_monitors_need_their_kinds(self):
        kinds = {found["kind"] for found in render()}
        self.assertFalse(kinds & {"PrometheusRule", "ServiceMonitor", "PodMonitor"})
        objects = render("--set", "metrics.rules.enabled=false", kinds=(MONITORING,))
        self.assertEqual(of_kind(objects, "PrometheusRule"), [])

    def test_dashboards_arrive_as_they_are(self):
        files = {f"hypic-{file.name}": json.loads(file.read_text()) for file in (CHARTS / "hypic/dashboards").glob("*.json")}
        self.assertEqual(len(files), 2)
        found = {}
        for config in of_kind(render(), "ConfigMap"):
            self.assertEqual(config["metadata"]["labels"]["grafana_dashboard"], "1")
            found.update({name: json.loads(text) for name, text in config["data"].items()})
        self.assertEqual(found, files)
        self.assertEqual(of_kind(render("--set", "dashboards.enabled=false"), "ConfigMap"), [])


if __name__ == "__main__":
    unittest.main()
