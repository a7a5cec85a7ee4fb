"""Keys of configurations that change neither layers nor sizes nor experts nor attention."""

import re
from collections.abc import Mapping

HARMLESS: Mapping[str, str] = {
    "of files and loading": """
        architectures auto_map model_type torch_dtype dtype transformers_version name_or_path
        _name_or_path _commit_hash _attn_implementation _attn_implementation_autoset
        _attn_implementation_internal attn_implementation _flash_attn_2_enabled custom_pipelines
        torchscript id2label label2id num_labels problem_type is_decoder finetuning_task
        pruned_heads tokenizer_class return_dict output_hidden_states output_attentions
        tf_legacy_loss use_bfloat16 chunk_size_feed_forward
        gradient_checkpointing transformers_dot_js_config use_reentrant_checkpointing
        _pre_quantization_dtype neftune_noise_alpha
        architecture parent_library peft_config model_name hidden_states_dtype max_length_cap
        sentence_transformers text_model_type language bad_words unsloth_version unsloth_fixed
        vocabulary_map params_dtype init_device rope_local_base_freq license version description
        enable_model_parallel use_remote_code trust_remote_code""",
    "of text generation": """
        max_length min_length do_sample temperature top_k top_p typical_p num_beams
        num_beam_groups diversity_penalty num_return_sequences repetition_penalty length_penalty
        early_stopping no_repeat_ngram_size encoder_no_repeat_ngram_size output_scores
        return_dict_in_generate suppress_tokens begin_suppress_tokens bad_words_ids prefix
        exponential_decay_length_penalty remove_invalid_values use_cache cache_implementation
        generation_config task_specific_params max_new_tokens chat_format chat_template
        max_window_size num_logits_to_keep use_cache_quantization use_cache_kernel
        keep_window_size enable_lm_head_fp32""",
    "of numerics and kernels": """
        attention_softmax_in_fp32 scale_attention_softmax_in_fp32 softmax_in_fp32 fp32
        masked_softmax_fusion bias_dropout_fusion skip_bias_add skip_bias_add_qkv slow_but_exact
        pretraining_tp use_flash_attn use_flash_attention use_flash_attention_2 use_flash_attn_2
        flash_attn flash_attention flash_rotary fused_dense fused_bias_fc use_fused_rmsnorm
        use_fused_rope use_fused_swiglu fused_mlp fused_norm fused_qkv fused_cross_entropy
        use_xformers use_memory_efficient_attention reorder_and_upcast_attn attn_impl
        low_cpu_mem residual_in_fp32 no_reduce use_kernels kernel_config attn_uses_sequence_id
        attn_config.attn_impl attn_config.attn_uses_sequence_id verbose interleaved_kv
        apply_query_key_layer_scaling scale_attn_weights scale_attn_by_inverse_layer_idx
        enable_moe_fp32_combine moe_dtype moe_router_dtype moe_logging ep_size
        ep_communication_type
        expert_model_parallel_size enable_expert_parallel use_deepep
        moe_use_legacy_grouped_gemm
        moe_permute_fusion moe_grouped_gemm moe_token_dispatcher_type moe_dispatcher
        moe_multimodal_dispatch_use_allgather tensor_parallel_degree sequence_parallel
        use_recompute_moe use_recompute recompute use_triton_in_paged_attention use_cpu_offload
        pad_key_length pre_allocate_kv_cache inference_runner max_batch_size validate_runner_input
        using_split_qkv_in_self_attention use_sparse_head_and_loss_fn compression_ratio
        fuse_rms_norm fuse_softmax_mask
        fuse_attention_qkv fuse_attention_ffn fuse_linear fuse_rope fuse_swiglu fuse_ln
        swap_linear fp8_mem_configs fp8_fused_ops_configs moe_use_allgather layernorm_compute
        norm_reduction_force_float32 quantization_bit pre_seq_len prefix_projection
        router_dtype attention_output_dtype is_causal causal""",
    "of initialisation and training": """
        initializer_range initializer_factor init_std init_method_std embed_init_std
        embedding_initializer_range initializer_cutoff_factor init_config init_method
        rescale_prenorm_residual init_cfg dropout attention_dropout hidden_dropout attn_dropout
        router_aux_loss_coef aux_loss_coef aux_loss_alpha router_z_loss_coef z_loss_coefficient
        seq_aux moe_z_loss_coeff moe_aux_loss_coeff output_router_logits router_jitter_noise
        input_jitter_noise router_dropout moe_jitter_eps ffn_config.moe_jitter_eps
        ffn_config.moe_loss_weight ffn_config.uniform_expert_assignment ffn_config.ffn_act_fn
        ffn_config.moe_normalize_expert_weights moe_router_jitter router_auxiliary_loss_coef
        mtp_loss_lambda mtp_loss_scaling_factor moe_capacity moe_capacity_factor capacity_factor
        moe_eval_capacity_factor moe_train_capacity_factor moe_min_capacity moe_token_dropping
        moe_drop_tokens use_rts moe_orthogonal_loss_lambda moe_group_orthogonal_loss
        multi_token_pred_lambda moe_random_routing_dropped_token moe_use_aux_free
        bias_update_speed use_mup mup_enabled layerdrop moe_multimodal_paired_experts
        attn_config.attn_pdrop router_bias_update_rate moe_expert_capacity_factor
        moe_loss_weight moe_aux_loss router_entropy_coef router_mini_expert_loss
        moe_layer_recompute group_max_loss weight_decay learning_rate""",
    "of the length of a text": """
        n_ctx n_positions max_position_embeddings max_sequence_length max_seq_len max_seq_length
        seq_length seq_len model_max_length original_max_position_embeddings
        tokenizer_model_max_length
        max_model_len context_length original_max_position max_context_length train_seq_len
        base_seqlen max_trained_seqlen max_trained_positions
        tokenizer_padding_side
        training_seqlen initial_context_length""",
    "of positions, said in the details": """
        rope_theta rope_scaling rope_parameters rope_interleave partial_rotary_factor rotary_pct
        rotary_emb_base rope_ratio rope_local_theta rope_type rope_dim_ratio rope_base
        rotary_base rotary_percent rotary_emb_fraction rotary_scaling_factor rotary_emb_scale_base
        rope_global_base_freq use_dynamic_ntk use_logn_attn use_ntk apply_rotary rope_pct
        no_rope_layers no_rope_layer_interval nope_layer_interval no_rope_layers_interval
        long_factor short_factor attn_temperature_tuning floor_scale attn_scale freq_allocation
        rope_3d rope_traditional mrope_section attn_config.rope_theta original_rope
        layer_rope_theta rope_theta_by_layer
        compression_rope swa_rope_theta attn_config.alibi_bias_max alibi_bias_max position_scaling
        attn_config.rope_impl attn_config.rope_dail_config attn_config.rope_hf_config
        yarn_scale rope_percent rotary_interleaved use_position_ids logn offset_alibi
        use_rotary_embeddings use_mem_rope""",
    "of activations and epsilons, said in the details": """
        hidden_act hidden_activation activation_function activation mlp_hidden_act ffn_hidden_act
        mlp_act hidden_activation_fn rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon
        norm_eps layernorm_epsilon layer_norm_rms_eps ln_eps swiglu_alpha swiglu_limit
        moe_norm_min xielu_beta activation_type scoring_func norm_topk_prob routed_scaling_factor
        router_activation route_scale route_norm moe_router_activation_func score_func
        score_function router_scale expert_selection_fn moe_router_topk_scaling_factor
        moe_router_enable_routed_scaling moe_renormalize moe_gate moe_gate_act
        router_scaling_factor layernorm_eps
        moe_router_use_sigmoid router_type_scores gating_function moe_routed_scaling_factor
        shared_expert_combination_strategy moe_apply_router_weight_on_input
        moe_router_logit_softcapping afn""",
    "factors and caps, which change no size": """
        embedding_multiplier logits_scaling residual_multiplier attention_multiplier logit_scale
        scale_emb scale_depth dim_model_base query_pre_attn_scalar final_logit_softcapping
        attn_logit_softcapping router_logit_softcapping embedding_scale scale_embedding clip_qkv
        attn_config.clip_qkv attn_config.softmax_scale softmax_scale embedding_fraction
        embedding_multiplier_scale output_multiplier_scale attn_output_multiplier max_attn_value
        lm_head_multiplier key_multiplier qk_layernorm_epsilon final_w_init_variance_scale
        mup_denominator mup_base_width mup_embeddings_scale mup_output_alpha mup_width_scale
        mup_scale_qk_dot_by_d
        width_scale embeddings_scale output_logits_scale attention_value_scale norm_head
        layernorm_full_attention_alpha layernorm_full_attention_beta
        layernorm_linear_attention_alpha layernorm_linear_attention_beta layernorm_mlp_alpha
        layernorm_mlp_beta full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor
        linear_attn_beta_factor mlp_alpha_factor mlp_beta_factor z_loss_factor
        logits_soft_cap attn_logit_cap""",
    "of weights stored in fewer bits": """
        quantization_config quantization compression_config quant_config quantization_method
        use_bnb load_in_8bit load_in_4bit bitnet_quantization""",
    "of other towers and their tokens": """
        vision_config audio_config image_grid_pinpoints image_aspect_ratio image_crop_resolution
        image_split_resolution vision_feature_layer vision_feature_select_strategy
        projector_hidden_act multimodal_projector_bias use_mm_proj freeze_mm_mlp_adapter
        tune_mm_mlp_adapter tokenizer_image_aspect_ratio embd_layer img_processor audio_processor
        vision_lora speech_lora boi_token_index eoi_token_index boa_token_index eoa_token_index
        deepstack_visual_indexes fullatt_block_indexes use_image_newline_parameter
        mm_tokens_per_image im_start_id im_end_id visual""",
    "of windows, which shorten attention and change no size": """
        sliding_window_size full_attn_mod interpolate_factor layer_switch global_attn_every_n
        order_of_interleaved_layers attention_window_size global_attn_every_n_layers
        attn_temperature_len prefix_dense_sliding_window_pattern""",
    "of files of several models, off in this one": """
        cla_share_factor dense_list class_num pool_type num_media_embeds org_vocab_size
        add_classification_head moe_layer_num_skipped vit_path vit_type vit_input_resolution
        vit_token vit_mapping_type vit_patch vit_add_patchemb_bias vit_norm_type vit_remove_prenorm
        vit_used_rms_norm text_start_id text_end_id use_vit_mapping max_tokenizer_truncation
        use_parallel_embedding position_embedding_xdrope num_ln_in_parallel_attn onnx_safe
        use_mrope force_image_size batch_vision_input is_composition query_num
        slice_config slice_mode drop_vision_last_layer patch_size use_image_id init_tts init_audio
        init_vision tts_config talker_config perceiver_config qk_layer_norms_perceiver
        pixel_shuffle_factor use_resampler stream_input chunk_input listen_speak_type
        resampler_config unfreeze_mm_vision_tower tokenizer_name pad_vocab_size_multiple
        tp_world_size for_llm_compressor
        is_llama_config z_loss_weight rm_head logits_to_keep bf16 fp16""",
    "of heads for classification": """
        summary_type summary_use_proj summary_activation summary_proj_to_labels
        summary_first_dropout summary_last_dropout classifier_dropout classifier_activation
        classifier_bias classifier_pooling use_pooled_output""",
}
"""By reason, names of keys that change neither layers nor sizes nor experts nor attention."""

HARMLESS_NAMES = frozenset(name for names in HARMLESS.values() for name in names.split())
HARMLESS_PATTERN = re.compile(
    r"_ids?$|(^|_)(token|pad|bos|eos|eod|sep|unk|mask|cls)_(id|ids|index|idx|token|token_id)s?$"
    r"|_token(_id|_ids|_index|s)?$|_pdrop$|dropout|^(mm|vision|audio|image|video|img|speech)_"
    r"|_dtype$|seed$|_version$|^_|_loss(_coef|_coeff|_alpha|_weight|_lambda)$|^summary_|^fuse"
    r"|^use_(flash|fused|cache|recompute)|_impl$|_implementation$|_eps$|_epsilon$|_drop$"
    r"|^initializer_|^output_router|_in_fp32$"
)
