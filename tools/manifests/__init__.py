"""The Kubernetes manifests of `deploy/`, checked against the classes of the Kubernetes and Kubeflow clients."""
