//! Properties of a device's plan.

use proptest::prelude::*;

use super::*;
use crate::{policy::plimsoll::KvFormat, tape::own::StepLimits};

/// Llama-3-8B in bfloat16 on a card of 140 GiB.
fn llama() -> (DeviceReadings, DeviceEngine) {
    let readings = DeviceReadings {
        total: Bytes::mib(143_155),
        free: Bytes::mib(142_543),
        context: Bytes::mib(600),
        page: PAGE,
    };
    let cell =
        KvCell { layers: 32, kv_heads: 8, head_dim: 128, format: KvFormat::Bf16, page_tokens: 16 };
    let settings = Settings {
        max_running_requests: 256,
        chunked_prefill_size: 8192,
        context_length: 8192,
        limits: StepLimits { tokens: 8448, outputs: 256 },
    };
    let regions = Regions {
        weights: Bytes(8_030_261_248 * 2),
        rotary: Bytes::mib(4),
        inputs: Bytes::mib(1),
        arena: Bytes::mib(700),
        scratch: Bytes::mib(33),
        workspace: Bytes::mib(32),
    };
    (readings, DeviceEngine { regions, cell, settings, ranks: 1, graphs: 35, launches: 290 })
}

fn sum(plan: &DevicePlan) -> Bytes {
    plan.rows.iter().map(DeviceRow::bytes).sum()
}

#[test]
fn a_plan_by_hand() {
    let (readings, engine) = llama();
    let plan = DevicePlan::new(&readings, &DeviceArgs::default(), &engine).unwrap();
    assert_eq!(plan.of(DevicePart::OtherPrograms), Bytes::mib(12));
    assert_eq!(plan.of(DevicePart::Margin), Bytes::gib(1));
    // 16 tokens of 128 KiB.
    assert_eq!(plan.page, Bytes::mib(2));
    // 139.2 GiB in 4096 pieces.
    assert_eq!(plan.chunk, Bytes::mib(36));
    assert_eq!(sum(&plan), readings.total);
    assert!(plan.of(DevicePart::Rest) < plan.chunk);
    assert_eq!(plan.of(DevicePart::KvPool), plan.pool_bytes());
    // MiB: 142,543 - 15,318 weights - 1,024 margin - 8 - 96 - 4 - 2 - 700 - 34 - 32 - 80 = 125,245: 3,479 chunks.
    assert_eq!((plan.pages, plan.pool_tokens()), (62_622, 1_001_952));
    let capped = DeviceArgs { max_total_tokens: Some(100_001), ..DeviceArgs::default() };
    let capped = DevicePlan::new(&readings, &capped, &engine).unwrap();
    assert_eq!((capped.pages, capped.chunk), (6_251, Bytes::mib(4)));
    assert_eq!(sum(&capped), readings.total);
}

#[test]
fn what_is_measured_settles_the_pool_and_what_is_not_shows() {
    let (readings, engine) = llama();
    let mut plan = DevicePlan::new(&readings, &DeviceArgs::default(), &engine).unwrap();
    let predicted = plan.pages;
    plan.measured(DevicePart::Gemm, Bytes::mib(300));
    let held = |plan: &DevicePlan| {
        let open = [DevicePart::KvPool, DevicePart::Margin, DevicePart::Rest];
        let rows = plan.rows.iter().filter(|row| !open.contains(&row.part));
        rows.map(DeviceRow::bytes).sum::<Bytes>()
    };
    // Somebody took 10 MiB meanwhile; 100 MiB of the pool are mapped already.
    let pool = Bytes::mib(100);
    let free = readings.total.saturating_sub(held(&plan) + Bytes::mib(10) + pool);
    assert_eq!(plan.pages_within(free, pool), plan.pages_within(free + pool, Bytes::ZERO));
    plan.settle(free, pool, u64::MAX).unwrap();
    assert_eq!(plan.of(DevicePart::Unexplained), Bytes::mib(10));
    assert_eq!(plan.of(DevicePart::Margin), Bytes::gib(1));
    assert_eq!(sum(&plan), readings.total);
    // 204 + 10 MiB more: five or six chunks of 18 pages.
    assert!((90..=108).contains(&(predicted - plan.pages)), "{predicted} {}", plan.pages);
    let free = free + pool;
    plan.settle(free, Bytes::ZERO, 1000).unwrap();
    assert_eq!((plan.pages, sum(&plan)), (1000, readings.total));
    let error = plan.settle(free, Bytes::ZERO, 100).unwrap_err().to_string();
    assert!(error.starts_with("the pool has 100 pages of 2.00 MiB, and 513 are needed"), "{error}");
}

#[test]
fn refusals_have_the_numbers() {
    let (mut readings, engine) = llama();
    readings.free = Bytes::gib(14);
    let args = DeviceArgs::default();
    let refused = |readings: &DeviceReadings| {
        DevicePlan::new(readings, &args, &engine).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&readings),
        "the weights of this rank take 14.96 GiB, and 14.00 GiB of the device's 139.80 GiB is free: 982.00 MiB \
         too little. Use a larger device, more of them (--tp-size), or stop what else runs there (`nvidia-smi`)"
    );
    readings.free = Bytes::gib(16);
    let error = refused(&readings);
    assert!(error.contains("a smaller --mem-margin would change that"), "{error}");
    readings.free = Bytes::gib(17) + Bytes::mib(256);
    assert!(refused(&readings).starts_with("the pool has "));
}

proptest! {
    #[test]
    fn rows_are_the_total(
        (total, free, context) in (1_u64..200_000, 0.1..1.0_f64, 0_u64..800),
        weights in 0_u64..80_000, (layers, heads, page_tokens) in (1_u64..80, 1_u64..16, 1_u64..65),
        drift in 0_u64..64, gemm in 0_u64..600, most in prop::option::of(1_u64..3_000_000),
    ) {
        let (_, mut engine) = llama();
        engine.regions.weights = Bytes(weights << 20 | 4095);
        engine.cell = KvCell { layers, kv_heads: heads, page_tokens, ..engine.cell };
        let free = (total as f64 * free) as u64;
        let context = Bytes::mib(context.min(total - free));
        let readings =
            DeviceReadings { total: Bytes::mib(total), free: Bytes::mib(free), context, page: PAGE };
        let args = DeviceArgs { mem_margin: None, max_total_tokens: most };
        let Ok(mut plan) = DevicePlan::new(&readings, &args, &engine) else { return Ok(()) };
        prop_assert_eq!(sum(&plan), readings.total);
        prop_assert!(plan.rows.is_sorted_by_key(|row| row.part));
        prop_assert!(plan.pool_bytes().0.is_multiple_of(plan.chunk.0));
        prop_assert!(plan.pool_bytes().0 / plan.chunk.0 <= CHUNKS_MAX);
        plan.measured(DevicePart::Gemm, Bytes::mib(gemm));
        let open = [DevicePart::KvPool, DevicePart::Margin, DevicePart::Rest];
        let held: Bytes = plan.rows.iter().filter(|row| !open.contains(&row.part)).map(DeviceRow::bytes).sum();
        let taken = held + Bytes::mib(drift);
        let Some(free) = readings.total.checked_sub(taken) else { return Ok(()) };
        if plan.settle(free, Bytes::ZERO, u64::MAX).is_ok() {
            prop_assert_eq!(sum(&plan), readings.total);
            prop_assert_eq!(plan.of(DevicePart::Unexplained), Bytes::mib(drift));
            // The margin is whole, and what is beside it is less than a chunk or what the pool may not have.
            prop_assert!(plan.pool_bytes() + plan.of(DevicePart::Margin) <= free);
        }
    }
}
