"""Settings of topics, of this broker, and of the cluster.

Not here: rules and plans of a change (admin/configs.py).
"""

import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from sparklog.errors import SparklogError
from sparklog.log.config import group_configs
from sparklog.metadata import Image
from sparklog_server.admin.changes import Outcome, RefusedError, outcome_of
from sparklog_server.admin.configs import (
    ConfigChange,
    ConfigEntry,
    ResourceChanges,
    ResourceType,
    TopicEntries,
    alter_resources,
    broker_entries,
    cluster_entries,
    group_entries,
    increments,
    invalid_request,
    replacement,
    validate_broker_name,
)
from sparklog_server.api.cluster import nodes_of
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import Recurring, field, make
from sparklog_server.protocol.wire import in_slices

# --- DescribeConfigs ---------------------------------------------------------------------------------

_PLAIN_BYTES, _DOCUMENTED_BYTES = 3_000, 15_000  # of one resource's answer


@api(ApiKey.DESCRIBE_CONFIGS, versions=range(1, 5))
async def handle_describe_configs(request: Any, context: RequestContext, services: Services) -> Any:
    """DescribeConfigs (key 32), versions 1-4.

    Does: all settings of a topic, of this broker, or those set for the whole cluster (broker ''), with the
        layer that each value comes from, all other layers (synonyms), type and documentation.
        The settings of a group (share groups have some), whether there is such a group or not.
    Does not: other brokers, loggers, client metrics.
    Each resource is described once. What is beyond 32 MiB is refused (INVALID_REQUEST): 2,000 resources with
        documentation, 10,000 without.
    Versions: 3 type and documentation (KIP-569); 4 flexible.
    """
    await services.root.look()
    image = services.root.image
    resources = {(one.resource_type, one.resource_name): one for one in request.resources}
    documented = field(request, "include_documentation", False)
    size = _DOCUMENTED_BYTES if documented else _PLAIN_BYTES
    fitting = {key for key in resources if context.answer.fits(size)}
    await context.answer.reserve()
    known = _Described(request, context.types, services, image)
    results = await in_slices(
        _described_resource(context.types, one, known if key in fitting else None)
        for key, one in resources.items()
    )
    return make(context.types.DescribeConfigsResponse, results=results)


def _described_resource(types: Any, resource: Any, known: "_Described | None") -> Any:
    """Return one resource; `known` None: it would make the answer too large."""
    try:
        if known is None:
            raise invalid_request("Too many resources for one request.")
        configs = known.of(resource)
    except (SparklogError, RefusedError) as error:
        outcome = outcome_of(error)
        return make(
            types.DescribeConfigsResult,
            error_code=outcome.code,
            error_message=outcome.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    return make(
        types.DescribeConfigsResult,
        error_code=ErrorCode.none,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


_Results = dict[str, Any]  # by the setting's name


class _Described:
    """Results of one request, cached by their inputs: thousands of topics have the same settings.

    The requested names are not a part of the key: 2,900 topics with a different unknown name each took 1.6 s.
    Equal lists are the same object, as are equal results: each is encoded once.
    """

    def __init__(self, request: Any, types: Any, services: Services, image: Image) -> None:
        self._request = request
        self._types = types
        self._services = services
        self._image = image
        self._of_topics: TopicEntries | None = None
        self._groups = group_configs(image.configs)
        self._of_values: dict[tuple[str, str | None], Any] = {}  # of topics: by name and a topic's own value
        self._all: dict[Hashable, _Results] = {}
        self._chosen: dict[Hashable, tuple[Any, ...]] = {}

    def of(self, resource: Any) -> tuple[Any, ...]:
        """Return the settings of one resource."""
        kind, name = resource.resource_type, resource.resource_name
        depends_on = self._depends_on(kind, name)
        if depends_on not in self._all:
            self._all[depends_on] = self._results(kind, name)
        results = self._all[depends_on]
        wanted = frozenset(resource.configuration_keys or ())  # none: all, as null
        names = tuple(name for name in results if not wanted or name in wanted)
        if (depends_on, names) not in self._chosen:
            self._chosen[depends_on, names] = Recurring(results[name] for name in names)
        return self._chosen[depends_on, names]

    def _depends_on(self, kind: int, name: str) -> Hashable:
        match ResourceType(kind):
            case ResourceType.TOPIC:
                return kind, tuple(sorted(self._image.topic(name).configs.items()))
            case ResourceType.BROKER:
                validate_broker_name(self._services.node_id, name)
                return kind, bool(name)
            case ResourceType.GROUP:
                return kind, tuple(sorted(self._groups.get(name, {}).items()))
            case unsupported:
                raise invalid_request(f"Unsupported resource type: {unsupported.name} ({kind})")

    def _results(self, kind: int, name: str) -> _Results:
        match ResourceType(kind):
            case ResourceType.TOPIC:
                return self._results_of_topic(self._image.topic(name).configs)
            case ResourceType.BROKER:
                config, image = self._services.config, self._image
                entries = broker_entries(config, image) if name else cluster_entries(image)
                return {one.name: _described_config(self._request, self._types, one) for one in entries}
            case _:
                entries = group_entries(self._services.config, self._image, name)
                return {one.name: _described_config(self._request, self._types, one) for one in entries}

    def _results_of_topic(self, configs: Mapping[str, str]) -> _Results:
        if self._of_topics is None:
            self._of_topics = TopicEntries(self._services.config, self._image)
        results = {}
        for name in self._of_topics.names:
            key = name, configs.get(name)
            if key not in self._of_values:
                self._of_values[key] = _described_config(
                    self._request, self._types, self._of_topics.entry(*key)
                )
            results[name] = self._of_values[key]
        return results


def _described_config(request: Any, types: Any, entry: ConfigEntry) -> Any:
    return make(
        types.DescribeConfigsResourceResult,
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=False,
        synonyms=[
            make(types.DescribeConfigsSynonym, name=one.name, value=one.value, source=one.source)
            for one in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=entry.config_type,
        documentation=entry.setting.doc if field(request, "include_documentation", False) else None,
    )


# --- AlterConfigs ------------------------------------------------------------------------------------


@api(ApiKey.ALTER_CONFIGS, versions=range(3))
async def handle_alter_configs(request: Any, context: RequestContext, services: Services) -> Any:
    """AlterConfigs (key 33), versions 0-2.

    Does: replace all overrides of topics, all settings of this broker, of the whole cluster (broker ''), or
        of a group:
        settings that are not named return to their defaults. Validate only.
    Does not: settings that brokers read when they start (server.properties); loggers.
    Versions: 2 flexible.
    """
    resources = [
        ResourceChanges(
            one.resource_type,
            one.resource_name,
            [ConfigChange(config.name, config.value) for config in one.configs],
        )
        for one in request.resources
    ]
    outcomes = await alter_resources(
        services.changes, services.config, resources, replacement, validate_only=request.validate_only
    )
    return make(
        context.types.AlterConfigsResponse, responses=resource_responses(context, resources, outcomes)
    )


def resource_responses(
    context: RequestContext, resources: Sequence[ResourceChanges], outcomes: Sequence[Outcome]
) -> list[Any]:
    """Return the outcome of each resource; also for IncrementalAlterConfigs."""
    return [
        make(
            context.types.AlterConfigsResourceResponse,
            error_code=outcome.code,
            error_message=outcome.message,
            resource_type=resource.resource_type,
            resource_name=resource.name,
        )
        for resource, outcome in zip(resources, outcomes, strict=True)
    ]


# --- IncrementalAlterConfigs -------------------------------------------------------------------------


@api(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=range(2))
async def handle_incremental_alter_configs(request: Any, context: RequestContext, services: Services) -> Any:
    """IncrementalAlterConfigs (key 44), versions 0-1.

    Does: set, delete, append to and subtract from overrides of topics, settings of this broker, of the whole
        cluster (broker ''), and of groups; all of a resource or nothing. Appending to a setting that is not
        set starts from the value in force. Validate only.
    Does not: settings that brokers read when they start (server.properties); loggers.
    Versions: 1 flexible.
    """
    resources = [
        ResourceChanges(
            one.resource_type,
            one.resource_name,
            [ConfigChange(config.name, config.value, config.config_operation) for config in one.configs],
        )
        for one in request.resources
    ]
    outcomes = await alter_resources(
        services.changes,
        services.config,
        resources,
        functools.partial(increments, services.config),
        validate_only=request.validate_only,
    )
    return make(
        context.types.IncrementalAlterConfigsResponse,
        responses=resource_responses(context, resources, outcomes),
    )


# --- ListConfigResources -----------------------------------------------------------------------------

_LISTABLE = frozenset(ResourceType) - {ResourceType.UNKNOWN}


@api(ApiKey.LIST_CONFIG_RESOURCES, versions=range(2))
async def handle_list_config_resources(request: Any, context: RequestContext, services: Services) -> Any:
    """ListConfigResources (key 74), versions 0-1.

    Does: lists the resources with settings: topics, brokers that are not fenced, and groups that have some of
        their own. Client metrics and loggers have no settings, and are not listed.
    Does not: return the settings (DescribeConfigs).
    Versions: 0 client metrics only (it was ListClientMetricsResources, KIP-714); 1 by type, or all of them
        (KIP-1142). Types that no version of it knows are UNSUPPORTED_VERSION, as Kafka answers.
    """
    types = context.types
    wanted = frozenset(map(ResourceType, field(request, "resource_types", (ResourceType.CLIENT_METRICS,))))
    if not wanted <= _LISTABLE:
        return make(types.ListConfigResourcesResponse, error_code=ErrorCode.unsupported_version)
    await services.root.look()
    resources = (
        make(types.ConfigResource, resource_name=name, resource_type=kind)
        for kind, name in _listed_resources(wanted or _LISTABLE, context, services)
    )
    return make(
        types.ListConfigResourcesResponse,
        error_code=ErrorCode.none,
        config_resources=await in_slices(resources),
    )


def _listed_resources(
    wanted: frozenset[ResourceType], context: RequestContext, services: Services
) -> Iterator[tuple[ResourceType, str]]:
    if ResourceType.BROKER in wanted:
        for node in nodes_of(services, context.listener):
            yield ResourceType.BROKER, str(node.node_id)
    if ResourceType.TOPIC in wanted:
        for name in services.root.image.topics:
            yield ResourceType.TOPIC, name
    if ResourceType.GROUP in wanted:
        for group in group_configs(services.root.image.configs):
            yield ResourceType.GROUP, group
