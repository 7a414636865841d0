//! Programs of the smallest sizes.

use zbelastic_consensus::codec::encode;
use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncRequest, AsyncVariant, DynamicOptions, DynamicRule, generate_async,
};
use zbelastic_schedule::pytorch::{CsvFormat, write};
use zbelastic_schedule::{LowerOptions, Program, ScheduleKind, Window, generate, lower};

const STAGES: u32 = 2;
const MICROBATCHES: u32 = 4;

/// Each schedule that exists at this size.
fn generated() -> impl Iterator<Item = Program> {
    ScheduleKind::ALL.into_iter().filter_map(|kind| generate(kind, STAGES, MICROBATCHES).ok())
}

fn lowered(program: &Program) -> Program {
    lower(program, LowerOptions { window: Window::One, early_head_weights: true })
}

pub fn programs() -> Vec<Vec<u8>> {
    generated().map(|program| lowered(&program).to_string().into_bytes()).collect()
}

pub fn packed_programs() -> Vec<Vec<u8>> {
    generated().map(|program| encode(&lowered(&program))).collect()
}

pub fn async_programs() -> Vec<Vec<u8>> {
    let request = |kind| AsyncRequest {
        kind,
        stage_count: STAGES,
        minibatch_count: 2,
        microbatch_count: 2,
        replica_count: 1,
        dynamic: DynamicOptions { rule: DynamicRule::Oldest, cap: 2, update_every: 2 },
        variant: AsyncVariant::default(),
    };
    let made = AsyncKind::ALL.into_iter().filter_map(|kind| generate_async(request(kind)).ok());
    made.map(|program| program.to_string().into_bytes()).collect()
}

pub fn pytorch_schedules() -> Vec<Vec<u8>> {
    let forms = [CsvFormat::ComputeOnly, CsvFormat::WithCommunication];
    let texts = generated().flat_map(|program| forms.map(|form| write(&program, form)));
    texts.filter_map(Result::ok).map(String::into_bytes).collect()
}
