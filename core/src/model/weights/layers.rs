//! The modules of a layer, of the model's ends and of its draft layers.

use crate::model::{
    detail::{DecayGate, OutputGate, QkNorm},
    geometry::{Attention, Indexer, Layer, LinearKind, LinearState, Mlp, Span},
    kv::heads_on_rank,
};

use super::{
    DraftWeights, PartKind,
    sheet::{Role, Sheet, Size},
};

/// Adds one layer of the geometry.
pub(super) fn layer(sheet: &mut Sheet<'_>, index: usize, layer: &Layer) {
    sheet.enter(index);
    let block = sheet.model.detail.layers_a_block.max(1) as usize;
    modules(sheet, &format!("model.layers.{}", index / block), layer);
}

fn modules(sheet: &mut Sheet<'_>, prefix: &str, layer: &Layer) {
    let hidden = sheet.model.geometry.hidden_size;
    let names = sheet.model.detail.names;
    let attention = format!("{prefix}.{}", names.attention);
    match layer.attention {
        Attention::Gqa { .. } => gqa(sheet, &attention, &layer.attention),
        Attention::Mla { .. } => mla(sheet, &attention, &layer.attention),
        Attention::Linear(state) => {
            let name = format!("{prefix}.{}", names.linear);
            linear(sheet, &name, &state);
        }
        Attention::None => {}
    }
    match layer.mlp {
        Mlp::Dense { intermediate, matrices } => {
            let name = format!("{prefix}.{}", names.dense);
            let tp = sheet.options.parallel.dense;
            feed_forward(sheet, PartKind::Dense, &name, (intermediate, matrices), tp);
        }
        Mlp::Moe { .. } => moe(sheet, &format!("{prefix}.{}", names.moe), &layer.mlp),
        Mlp::None => {}
    }
    for _ in 0..sheet.model.detail.norms {
        sheet.vector(PartKind::Norms, "norm", hidden);
    }
    if let Some(input) = sheet.model.detail.per_layer_input {
        let gate = Size::matrix(input.width, hidden);
        let back = Size::matrix(hidden, input.width);
        let name = |part: &str| format!("{prefix}.{part}");
        sheet.add(PartKind::Dense, Role::Linear, &name("per_layer_input_gate"), gate, gate);
        sheet.add(PartKind::Dense, Role::Linear, &name("per_layer_projection"), back, back);
    }
}

/// Columns of the query, key and value projections go by heads; keys and values are copied when
/// there are more ranks than heads. Source: `QKVParallelLinear` of both engines.
fn gqa(sheet: &mut Sheet<'_>, name: &str, attention: &Attention) {
    let Attention::Gqa { q_heads, kv_heads, head_dim, v_head_dim, span } = *attention else {
        return;
    };
    let detail = &sheet.model.detail;
    let (qkv_bias, o_bias, norm) = (detail.qkv_bias, detail.o_bias, detail.qk_norm);
    let (gate, k_is_v) = (detail.output_gate, detail.k_is_v && span == Span::Full);
    let hidden = sheet.model.geometry.hidden_size;
    let tp = sheet.options.parallel.attention;
    let kv_here = heads_on_rank(kv_heads, tp);
    let wide = if gate == OutputGate::Channel { 2 } else { 1 };
    let mut project = |part: &str, rows: u64, rows_here: u64| {
        let whole = Size::matrix(rows, hidden);
        let local = Size::matrix(rows_here, hidden);
        let kind = PartKind::Attention;
        sheet.add(kind, Role::Linear, &format!("{name}.{part}"), whole, local);
        if qkv_bias {
            let bias = (Size::vector(rows), Size::vector(rows_here));
            sheet.add(kind, Role::Plain, "bias", bias.0, bias.1);
        }
    };
    project("q_proj", q_heads * head_dim * wide, (q_heads * head_dim * wide).div_ceil(tp));
    project("k_proj", kv_heads * head_dim, kv_here * head_dim);
    if !k_is_v {
        project("v_proj", kv_heads * v_head_dim, kv_here * v_head_dim);
    }
    let out = Size::matrix(hidden, q_heads * v_head_dim);
    let kind = PartKind::Attention;
    sheet.add(kind, Role::Linear, &format!("{name}.o_proj"), out, out.by_cols(tp));
    if gate == OutputGate::Head {
        let gates = Size::matrix(q_heads, hidden);
        sheet.add(kind, Role::Linear, &format!("{name}.g_proj"), gates, gates.by_rows(tp));
    }
    if o_bias {
        sheet.vector(kind, "bias", hidden);
    }
    match norm {
        QkNorm::None => {}
        QkNorm::Head => sheet.vector(PartKind::Norms, "norm", 2 * head_dim),
        QkNorm::AllHeads => {
            sheet.vector(PartKind::Norms, "norm", (q_heads + kv_heads) * head_dim);
        }
    }
}

/// The down-projections are on every rank, the up-projections divided by heads. After loading both
/// engines keep the key and value halves of `kv_b_proj` once more, unquantised. Source: SGLang
/// `models/deepseek_v2.py` (`w_kc`, `w_vc`), vLLM `attention/backends/mla/common.py`.
fn mla(sheet: &mut Sheet<'_>, name: &str, attention: &Attention) {
    let Attention::Mla {
        q_heads,
        q_lora_rank,
        kv_lora_rank,
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim,
        indexer,
    } = *attention
    else {
        return;
    };
    let hidden = sheet.model.geometry.hidden_size;
    let tp = sheet.options.parallel.attention;
    let gate = sheet.model.detail.mla_gate;
    let kind = PartKind::Attention;
    let query = q_heads * (qk_nope_head_dim + qk_rope_head_dim);
    let mut add = |part: &str, whole: Size, local: Size| {
        sheet.add(kind, Role::Linear, &format!("{name}.{part}"), whole, local);
    };
    if let Some(rank) = q_lora_rank {
        let down = Size::matrix(rank, hidden);
        let up = Size::matrix(query, rank);
        add("q_a_proj", down, down);
        add("q_b_proj", up, up.by_rows(tp));
    } else {
        let direct = Size::matrix(query, hidden);
        add("q_proj", direct, direct.by_rows(tp));
    }
    let down = Size::matrix(kv_lora_rank + qk_rope_head_dim, hidden);
    let up = Size::matrix(q_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank);
    let out = Size::matrix(hidden, q_heads * v_head_dim);
    add("kv_a_proj_with_mqa", down, down);
    add("kv_b_proj", up, up.by_rows(tp));
    add("o_proj", out, out.by_cols(tp));
    if gate {
        let gates = Size::matrix(q_heads * v_head_dim, hidden);
        add("g_proj", gates, gates.by_rows(tp));
    }
    let norms = q_lora_rank.unwrap_or(0) + kv_lora_rank;
    sheet.vector(PartKind::Norms, "norm", norms);
    sheet.copy(PartKind::Absorbed, up.by_rows(tp));
    if let Some(index) = indexer {
        add_indexer(sheet, name, &index, q_lora_rank.unwrap_or(hidden));
    }
}

/// On every rank whole. Source: SGLang `layers/attention/nsa/nsa_indexer.py`.
fn add_indexer(sheet: &mut Sheet<'_>, name: &str, index: &Indexer, query_rank: u64) {
    let hidden = sheet.model.geometry.hidden_size;
    let kind = PartKind::Attention;
    let query = Size::matrix(index.heads * index.head_dim, query_rank);
    let key = Size::matrix(index.head_dim, hidden);
    let heads = Size::matrix(index.heads, hidden);
    sheet.add(kind, Role::Linear, &format!("{name}.indexer.wq_b"), query, query);
    sheet.add(kind, Role::Linear, &format!("{name}.indexer.wk"), key, key);
    sheet.add(kind, Role::Plain, "weights_proj", heads, heads);
    sheet.vector(PartKind::Norms, "norm", 2 * index.head_dim);
}

fn linear(sheet: &mut Sheet<'_>, name: &str, state: &LinearState) {
    let hidden = sheet.model.geometry.hidden_size;
    let tp = sheet.options.parallel.attention;
    let kind = PartKind::Linear;
    let value = state.heads * state.head_dim;
    let groups_here = state.groups.div_ceil(tp);
    let heads_here = state.heads.div_ceil(tp);
    let value_here = heads_here * state.head_dim;
    let key = state.groups * state.state_dim;
    let key_here = groups_here * state.state_dim;
    let mut add = |role: Role, part: &str, rows: u64, rows_here: u64| {
        let (whole, local) = (Size::matrix(rows, hidden), Size::matrix(rows_here, hidden));
        sheet.add(kind, role, &format!("{name}.{part}"), whole, local);
    };
    match state.kind {
        LinearKind::Gdn => {
            add(Role::Linear, "in_proj_qkv", 2 * key + value, 2 * key_here + value_here);
            add(Role::Linear, "in_proj_z", value, value_here);
            add(Role::Plain, "in_proj_b", state.heads, heads_here);
            add(Role::Plain, "in_proj_a", state.heads, heads_here);
        }
        LinearKind::Mamba2 => {
            let rows = 2 * value + 2 * key + state.heads;
            let here = 2 * value_here + 2 * key_here + heads_here;
            add(Role::Linear, "in_proj", rows, here);
        }
        LinearKind::Kda => {
            for part in ["q_proj", "k_proj", "v_proj"] {
                add(Role::Linear, part, value, value_here);
            }
            add(Role::Linear, "b_proj", state.heads, heads_here);
            kda_gates(sheet, name, state);
        }
        LinearKind::Lightning => {
            add(Role::Linear, "qkv_proj", 3 * value, 3 * value_here);
            add(Role::Linear, "output_gate", value, value_here);
        }
    }
    let out = Size::matrix(hidden, value);
    let part = if state.kind == LinearKind::Kda { "o_proj" } else { "out_proj" };
    sheet.add(kind, Role::Linear, &format!("{name}.{part}"), out, out.by_cols(tp));
    small_linear(sheet, state, value, value_here);
}

/// Convolution, decay parameters (float32) and norm.
fn small_linear(sheet: &mut Sheet<'_>, state: &LinearState, value: u64, value_here: u64) {
    let tp = sheet.options.parallel.attention;
    let kind = PartKind::Linear;
    let conv = Size::matrix(state.conv_channels, state.conv_kernel);
    sheet.add(kind, Role::Plain, "conv1d", conv, conv.by_rows(tp));
    let norm = match state.kind {
        LinearKind::Mamba2 => {
            let bias = Size::vector(state.conv_channels);
            sheet.add(kind, Role::Plain, "bias", bias, bias.by_cols(tp));
            (value, value_here)
        }
        LinearKind::Gdn | LinearKind::Kda => (state.head_dim, state.head_dim),
        LinearKind::Lightning => (value, value_here),
    };
    sheet.add(PartKind::Norms, Role::Plain, "norm", Size::vector(norm.0), Size::vector(norm.1));
    let vectors = match state.kind {
        LinearKind::Mamba2 => 3,
        LinearKind::Gdn => 2,
        LinearKind::Kda => 1 + state.head_dim,
        LinearKind::Lightning => 0,
    };
    let decay = Size::vector(vectors * state.heads);
    sheet.add(kind, Role::Plain32, "decay", decay, decay.by_cols(tp));
}

/// Decay gate of low rank; output gate of low or full rank.
fn kda_gates(sheet: &mut Sheet<'_>, name: &str, state: &LinearState) {
    let hidden = sheet.model.geometry.hidden_size;
    let tp = sheet.options.parallel.attention;
    let value = state.heads * state.head_dim;
    let down = Size::matrix(state.head_dim, hidden);
    let up = Size::matrix(value, state.head_dim);
    let full = Size::matrix(value, hidden);
    let mut add = |part: &str, whole: Size, local: Size| {
        sheet.add(PartKind::Linear, Role::Linear, &format!("{name}.{part}"), whole, local);
    };
    add("f_a_proj", down, down);
    add("f_b_proj", up, up.by_rows(tp));
    match sheet.model.detail.decay_gate {
        DecayGate::LowRank => {
            let mut add = |part: &str, whole: Size, local: Size| {
                sheet.add(PartKind::Linear, Role::Linear, &format!("{name}.{part}"), whole, local);
            };
            add("g_a_proj", down, down);
            add("g_b_proj", up, up.by_rows(tp));
        }
        DecayGate::FullRank => {
            let part = format!("{name}.g_proj");
            sheet.add(PartKind::Linear, Role::Linear, &part, full, full.by_rows(tp));
        }
    }
}

fn feed_forward(
    sheet: &mut Sheet<'_>,
    kind: PartKind,
    name: &str,
    (intermediate, matrices): (u64, u64),
    tp: u64,
) {
    let hidden = sheet.model.geometry.hidden_size;
    let up = Size::matrix(intermediate, hidden);
    let down = Size::matrix(hidden, intermediate);
    let parts: &[&str] = if matrices > 2 { &["gate_proj", "up_proj"] } else { &["up_proj"] };
    for part in parts {
        sheet.add(kind, Role::Linear, &format!("{name}.{part}"), up, up.by_rows(tp));
    }
    sheet.add(kind, Role::Linear, &format!("{name}.down_proj"), down, down.by_cols(tp));
    if sheet.model.detail.mlp_bias {
        let bias = Size::vector(intermediate * (matrices - 1));
        sheet.add(kind, Role::Plain, "bias", bias, bias.by_cols(tp));
        sheet.vector(kind, "bias", hidden);
    }
}

/// Routers are on every rank whole; experts are divided by number (ep), then by width. Source:
/// `layers/moe/fused_moe_triton/layer.py` of SGLang, `fused_moe/layer.py` of vLLM.
fn moe(sheet: &mut Sheet<'_>, name: &str, mlp: &Mlp) {
    let Mlp::Moe { experts, intermediate, shared_intermediate, matrices, .. } = *mlp else {
        return;
    };
    let hidden = sheet.model.geometry.hidden_size;
    let (ep, tp) = (sheet.options.parallel.expert_ep, sheet.options.parallel.expert_tp);
    let router = Size::matrix(experts, hidden);
    sheet.add(PartKind::Router, Role::Plain, &format!("{name}.gate"), router, router);
    let mut wide = hidden;
    if let Some(latent) = sheet.model.detail.moe_latent {
        wide = latent;
        let down = Size::matrix(latent, hidden);
        let up = Size::matrix(hidden, latent);
        sheet.add(PartKind::Shared, Role::Linear, &format!("{name}.fc1_latent_proj"), down, down);
        sheet.add(PartKind::Shared, Role::Linear, &format!("{name}.fc2_latent_proj"), up, up);
    }
    let up = Size { rows: intermediate, cols: wide, count: experts };
    let down = Size { rows: wide, cols: intermediate, count: experts };
    let parts: &[&str] = if matrices > 2 { &["gate_proj", "up_proj"] } else { &["up_proj"] };
    for part in parts {
        let name = format!("{name}.experts.0.{part}");
        let local = up.by_count(ep).by_rows(tp);
        sheet.add(PartKind::Experts, Role::Expert, &name, up, local);
    }
    let last = format!("{name}.experts.0.down_proj");
    sheet.add(PartKind::Experts, Role::Expert, &last, down, down.by_count(ep).by_cols(tp));
    if sheet.model.detail.mlp_bias {
        let first = Size { rows: 1, cols: intermediate * (matrices - 1), count: experts };
        let second = Size { rows: 1, cols: hidden, count: experts };
        let local = first.by_count(ep).by_cols(tp);
        sheet.add(PartKind::Experts, Role::Plain, "bias", first, local);
        sheet.add(PartKind::Experts, Role::Plain, "bias", second, second.by_count(ep));
    }
    if shared_intermediate > 0 {
        let shared = match name.ends_with(".moe") && sheet.model.detail.k_is_v {
            // Gemma 4: the dense part beside the experts has the usual name.
            true => name.trim_end_matches(".moe").to_owned() + ".mlp",
            false => format!("{name}.{}", sheet.model.detail.names.shared),
        };
        let tp = sheet.options.parallel.shared;
        feed_forward(sheet, PartKind::Shared, &shared, (shared_intermediate, matrices), tp);
        if sheet.model.detail.shared_gate {
            let gate = Size::vector(hidden);
            sheet.add(PartKind::Shared, Role::Plain, "shared_expert_gate", gate, gate);
        }
    }
}

/// Rows of the vocabulary after padding: to a multiple of 64, and of 64 x tp when that is needed
/// for equal parts. Source: `layers/vocab_parallel_embedding.py` of both engines.
fn padded_vocab(vocab: u64, tp: u64) -> u64 {
    let padded = vocab.next_multiple_of(64);
    if padded.is_multiple_of(tp) { padded } else { vocab.next_multiple_of(64 * tp) }
}

/// Embedding on the first stage, final norm and head on the last; a tied head on another stage than
/// the embedding is a second copy.
pub(super) fn ends(sheet: &mut Sheet<'_>, first: bool, last: bool) {
    let geometry = &sheet.model.geometry;
    let (hidden, vocab) = (geometry.hidden_size, geometry.vocab_size);
    let (tied, layers) = (geometry.tie_word_embeddings, geometry.layers.len() as u64);
    let parallel = sheet.options.parallel;
    let table = Size::matrix(vocab, hidden);
    let local = |tp: u64| Size::matrix(padded_vocab(vocab, tp) / tp, hidden);

    sheet.here = first;
    let kind = PartKind::Embedding;
    sheet.add(kind, Role::Plain, "embed_tokens", table, local(parallel.embedding));
    let positions = sheet.model.detail.learned_positions;
    if positions > 0 {
        let table = Size::matrix(positions, hidden);
        sheet.add(kind, Role::Plain, "embed_positions", table, table);
    }
    if let Some(input) = sheet.model.detail.per_layer_input {
        let wide = layers * input.width;
        let table = Size::matrix(input.vocab, wide);
        let tp = parallel.embedding;
        let here = Size::matrix(padded_vocab(input.vocab, tp) / tp, wide);
        sheet.add(kind, Role::Plain, "embed_tokens_per_layer", table, here);
        let project = Size::matrix(wide, hidden);
        sheet.add(kind, Role::Plain, "per_layer_model_projection", project, project);
    }
    sheet.here = last;
    sheet.vector(PartKind::Norms, "norm", hidden);
    if !tied {
        sheet.add(PartKind::Head, Role::Head, "lm_head", table, local(parallel.head));
    } else if !first {
        let none = Size::matrix(0, hidden);
        sheet.add(PartKind::Head, Role::Plain, "lm_head", none, local(parallel.head));
    }
}

/// Draft layers with the projection that joins hidden state and embedding; embedding and head are
/// the main model's. Source: SGLang `models/deepseek_nextn.py`, vLLM `deepseek_mtp.py`.
pub(super) fn draft(sheet: &mut Sheet<'_>, last: bool) {
    let hidden = sheet.model.geometry.hidden_size;
    let count = sheet.model.geometry.layers.len();
    sheet.redirect = Some(PartKind::Draft);
    sheet.here = last && sheet.options.draft == DraftWeights::Loaded;
    let model = sheet.model;
    for (index, layer) in model.detail.nextn.iter().enumerate() {
        modules(sheet, &format!("model.layers.{}", count + index), layer);
        let join = Size::matrix(hidden, 2 * hidden);
        sheet.add(PartKind::Draft, Role::Plain, "eh_proj", join, join);
        sheet.vector(PartKind::Draft, "norm", 3 * hidden);
    }
    sheet.redirect = None;
}
