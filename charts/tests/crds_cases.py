"""Cases of the chart hypic-crds."""

import unittest

import kubernetes_validate

from render import render

KINDS = {"hypicclusters.hypic.dev", "hypicmodels.hypic.dev", "hypicscatterpools.hypic.dev"}
# kubectl's last-applied annotation holds 256 KiB; a kind well below it can be applied from the client too.
LARGEST = 200_000


class Kinds(unittest.TestCase):
    def test_the_three_kinds_are_there_and_known_to_kubernetes(self):
        kinds = render(chart="hypic-crds", release="hypic-crds")
        self.assertEqual({kind["metadata"]["name"] for kind in kinds}, KINDS)
        for kind in kinds:
            kubernetes_validate.validate(kind, "1.37", strict=True)

    def test_they_outlive_the_release(self):
        for kind in render(chart="hypic-crds", release="hypic-crds"):
            self.assertEqual(kind["metadata"]["annotations"]["helm.sh/resource-policy"], "keep")

    def test_one_version_is_served_and_each_is_small(self):
        for kind in render(chart="hypic-crds", release="hypic-crds"):
            served = [version["name"] for version in kind["spec"]["versions"] if version["served"]]
            self.assertEqual(served, ["v1alpha1"])
            self.assertLess(len(str(kind)), LARGEST)


if __name__ == "__main__":
    unittest.main()
