//! `/v1/models`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::exchange::check_key;
use super::fields::cut;
use crate::front::Front;
use crate::refusal::Refusal;

pub(super) async fn list(
    State(front): State<Arc<Front>>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    check_key(&front, &headers)?;
    Ok(Json(json!({"object": "list", "data": [model(&front)]})))
}

pub(super) async fn one(
    State(front): State<Arc<Front>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    check_key(&front, &headers)?;
    // An id that is no text names no model.
    let Path(id) = id.map_err(|_| Refusal::FindPath)?;
    if id == front.model.name.as_str() {
        Ok(Json(model(&front)))
    } else {
        Err(Refusal::FindModel { model: cut(&id) })
    }
}

fn model(front: &Front) -> Value {
    json!({
        "id": front.model.name, "object": "model", "created": 0, "owned_by": "hypic",
        "max_model_len": front.segmenter.context(),
    })
}
