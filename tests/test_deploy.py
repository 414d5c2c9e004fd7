"""The deployment files start the server with existing options, and agree with pyproject.toml."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from specqd.cli.serve import serve

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
SERVICE = (DEPLOY / "specqd.service").read_text()


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def parameters(command: list[str]) -> dict[str, Any]:
    """Parses the command, without running it, and returns the options of `serve`."""
    name, *arguments = command[command.index("serve") :]
    return serve.make_context(name, arguments).params


def test_the_container_and_the_compose_file_start_the_server() -> None:
    [entry] = re.findall(r"^ENTRYPOINT (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    service = parsed(DEPLOY / "compose.yaml")["services"]["specqd"]
    found = parameters([*yaml.safe_load(entry), *service["command"]])
    assert (found["host"], found["port"]) == ("0.0.0.0", 8000)
    [mount] = [each for each in service["volumes"] if each.startswith("../models")]
    [model] = found["model"]
    assert model.startswith(mount.split(":")[1])
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_the_container_copies_what_the_build_needs_and_is_not_root() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.MULTILINE)
    for path in " ".join(copied).split():
        assert (ROOT / path).exists(), path
    assert set(PROJECT["license-files"][:1]) <= set(" ".join(copied).split())
    assert int(re.findall(r"^USER (\d+)$", CONTAINERFILE, re.MULTILINE)[-1]) > 0


def test_the_image_gets_what_the_container_copies_and_nothing_that_was_built_here() -> None:
    first, *rules = (ROOT / ".dockerignore").read_text().splitlines()[1:]
    assert first == "*"
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.MULTILINE)
    assert {rule[1:] for rule in rules if rule[0] == "!"} == set(" ".join(copied).split())
    assert {rule for rule in rules if rule[0] != "!"} == {"**/__pycache__", "**/*.so"}


def test_the_service_starts_the_server() -> None:
    [command] = re.findall(r"^ExecStart=(.*)$", SERVICE, re.MULTILINE)
    assert parameters(shlex.split(command))["port"] == 8000


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_service_passes_the_check_of_systemd(tmp_path: Path) -> None:
    program = shutil.which("true")
    assert program is not None
    unit = tmp_path / "specqd.service"
    unit.write_text(SERVICE.replace("/opt/specqd/bin/specqd", program))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "specqd.service" not in done.stderr


# --- Kubernetes ----------------------------------------------------------------------------------

KUBERNETES = {
    each["kind"]: each
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for each in yaml.safe_load_all(path.read_text())
}
GROUP_FIELDS = {"rayStartParams", "template"}  # fields of KubeRay's v1 types


def container(template: Any) -> Any:
    [found] = template["spec"]["containers"]
    return found


def pods() -> dict[str, Any]:
    """Returns the pod templates of all manifests."""
    cluster = KUBERNETES["RayService"]["spec"]["rayClusterConfig"]
    [workers] = cluster["workerGroupSpecs"]
    return {
        "deployment": KUBERNETES["Deployment"]["spec"]["template"],
        "head": cluster["headGroupSpec"]["template"],
        "workers": workers["template"],
    }


def test_the_pods_of_the_deployment_start_the_server() -> None:
    pytest.importorskip("fastapi", reason="needs specqd[serve]")
    from specqd.server.opening import DRAIN_SECONDS

    pod = container(pods()["deployment"])
    [entry] = re.findall(r"^ENTRYPOINT (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    found = parameters([*yaml.safe_load(entry), *pod["args"]])
    assert found["port"] == pod["ports"][0]["containerPort"]
    assert found["threads"] == int(pod["resources"]["limits"]["cpu"])
    assert KUBERNETES["Service"]["metadata"]["name"] in found["allow_host"]
    assert pod["startupProbe"]["httpGet"]["path"] == pod["livenessProbe"]["httpGet"]["path"]
    assert pod["livenessProbe"]["httpGet"]["path"] == "/health"
    compile(pod["readinessProbe"]["exec"]["command"][2], "probe", "exec")
    patience = KUBERNETES["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert patience > DRAIN_SECONDS + pod["lifecycle"]["preStop"]["sleep"]["seconds"]


def test_manifests_select_the_pods_of_the_deployment() -> None:
    labels = KUBERNETES["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert KUBERNETES["Service"]["spec"]["selector"] == labels
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert KUBERNETES[kind]["spec"]["selector"]["matchLabels"] == labels


@pytest.mark.parametrize("name", ["deployment", "head", "workers"])
def test_pods_take_whole_cores_of_their_own(name: str) -> None:
    """The static CPU manager needs requests that equal limits, in whole cores."""
    resources = container(pods()[name])["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"].isdecimal()


def test_the_ray_service_has_kuberays_fields() -> None:
    service = KUBERNETES["RayService"]
    assert service["apiVersion"] == "ray.io/v1"
    assert set(service["spec"]) == {"serveConfigV2", "rayClusterConfig"}
    cluster = service["spec"]["rayClusterConfig"]
    own = {"rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
    assert set(cluster) == own
    assert set(cluster["headGroupSpec"]) == GROUP_FIELDS
    [workers] = cluster["workerGroupSpecs"]
    assert set(workers) == GROUP_FIELDS | {"groupName", "replicas", "minReplicas", "maxReplicas"}
    for group in (cluster["headGroupSpec"], workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    assert set(application) == {"name", "import_path", "route_prefix", "args"}
    arguments = application["args"]
    assert arguments["threads"] == int(container(workers["template"])["resources"]["limits"]["cpu"])
    assert workers["minReplicas"] <= arguments["replicas"] <= arguments["max_replicas"]
    assert arguments["max_replicas"] <= workers["maxReplicas"]


def test_ray_serve_takes_the_services_application() -> None:
    pytest.importorskip("ray.serve", reason="needs specqd[ray]")
    from ray.serve.schema import ServeDeploySchema

    from specqd.ray.options import Options

    config = yaml.safe_load(KUBERNETES["RayService"]["spec"]["serveConfigV2"])
    [application] = ServeDeploySchema.model_validate(config).applications
    assert Options.of(application.args).replicas == 2
    assert application.import_path == "specqd.ray:app"


def test_manifests_follow_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs specqd[lint]").validate
    whole = [each for kind, each in KUBERNETES.items() if kind != "RayService"]
    inner = [  # no schema of KubeRay is at hand; its pods are Kubernetes' own
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod["spec"]}
        for name, pod in pods().items()
    ]
    for manifest in [*whole, *inner]:
        validate(manifest, "1.37", strict=True)


def test_the_recipe_and_the_citation_agree_with_the_project() -> None:
    recipe = parsed(DEPLOY / "conda" / "recipe.yaml")
    names = {re.split("[<>=]", each)[0] for each in PROJECT["dependencies"]}
    python, *others = recipe["requirements"]["run"]
    found = {each["then"] if isinstance(each, dict) else each for each in others}
    assert (python, found) == (f"python {PROJECT['requires-python']}", names)
    citation = parsed(ROOT / "CITATION.cff")
    versions = [PROJECT["version"], recipe["package"]["version"], citation["version"]]
    assert len(set(versions)) == 1
    assert recipe["about"]["license"] == PROJECT["license"]
    for path in recipe["about"]["license_file"]:
        assert (ROOT / path).is_file()


@pytest.mark.parametrize("platform", ["linux-64", "linux-aarch64", "osx-arm64"])
def test_rattler_build_renders_the_recipe(platform: str) -> None:
    rattler = pytest.importorskip("rattler_build", reason="needs specqd[lint]")
    recipe = rattler.Stage0Recipe.from_file(DEPLOY / "conda" / "recipe.yaml")
    config = rattler.RenderConfig(rattler.PlatformConfig(target_platform=platform))
    [rendered] = recipe.render(rattler.VariantConfig({"python": ["3.13.*"]}), config)
    found = rendered.recipe.to_dict()
    compiler, *others = found["requirements"]["build"]
    assert re.fullmatch(rf"(gxx|clangxx)_{platform}", compiler)
    assert not [each for each in others if "$" in each]
    assert found["build"]["string"].startswith("py313")  # one package per version of Python
