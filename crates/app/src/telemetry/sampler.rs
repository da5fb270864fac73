//! Decides which spans are recorded.

use opentelemetry::trace::{Link, SpanKind, TraceContextExt, TraceId, TraceState};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler as SdkSampler, SamplingDecision, SamplingResult, ShouldSample};

use crate::config::Sampler;

/// The configured sampler. If it is based on parents, a span without a parent is also recorded if it has a
/// link to a recorded span: a batch belongs to the traces of all of its intents, and none of them can be its
/// parent.
#[derive(Clone, Debug)]
pub(super) struct LinkSampler {
    sampler: SdkSampler,
    parent_based: bool,
}

impl LinkSampler {
    pub(super) fn new(config: Sampler) -> Self {
        let Sampler { parent_based, share } = config;
        // The ratios 0 and 1 have the effect of always_off and always_on.
        let root = SdkSampler::TraceIdRatioBased(share);
        let sampler = if parent_based { SdkSampler::ParentBased(Box::new(root)) } else { root };
        Self { sampler, parent_based }
    }
}

impl ShouldSample for LinkSampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let has_parent = parent.is_some_and(|parent| parent.span().span_context().is_valid());
        if self.parent_based && !has_parent && links.iter().any(|link| link.span_context.is_sampled()) {
            return SamplingResult {
                decision: SamplingDecision::RecordAndSample,
                attributes: Vec::new(),
                trace_state: TraceState::default(),
            };
        }
        self.sampler.should_sample(parent, trace_id, name, kind, attributes, links)
    }
}
