buffer_load_dword v12, v7, s[28:31], 0 offen
buffer_load_dwordx2 v[38:39], v32, s[12:15], 0 offen
buffer_load_dwordx4 v[50:53], v72, s[24:27], 0 offen
buffer_load_ushort v40, v41, s[20:23], 0 offen
buffer_store_dword v3, v18, s[4:7], 0 offen
buffer_store_dwordx4 v[50:53], v71, s[24:27], 0 offen
buffer_store_short v4, v28, s[28:31], 0 offen
ds_bpermute_b32 v0, v44, v24
ds_read2_b32 v[38:39], v34 offset0:8 offset1:12
ds_read2st64_b32 v[8:9], v1 offset1:4
ds_read2st64_b64 v[40:43], v40 offset1:4
ds_read_b128 v[80:83], v34 offset:384
ds_read_b32 v0, v25
ds_read_b64 v[38:39], v5
ds_read_b64_tr_b16 v[100:101], v48 offset:8960
ds_read_u16 v2, v1
ds_write2_b32 v37, v14, v16 offset1:4
ds_write2st64_b32 v153, v2, v3 offset1:1
ds_write_b128 v6, v[8:11] offset:16896
ds_write_b16 v73, v71 offset:11264
ds_write_b32 v0, v1 offset:16384
ds_write_b64 v5, v[2:3] offset:16640
global_load_dword v46, v[46:47], off
global_load_dwordx2 v[10:11], v[18:19], off
global_load_dwordx4 v[18:21], v[6:7], off
global_load_lds_dword v[32:33], off
global_load_lds_dwordx4 v[2:3], off
global_load_ushort v21, v[22:23], off
global_store_dword v[30:31], v11, off
global_store_dwordx2 v[10:11], v[52:53], off
global_store_dwordx3 v[8:9], v[0:2], off
global_store_dwordx4 v10, v[0:3], s[0:1]
global_store_short v[6:7], v5, off
global_store_short_d16_hi v12, v4, s[8:9]
s_abs_i32 s15, s16
s_add_i32 s3, s12, s3
s_add_i32 m0, s37, 0x6300
s_add_u32 s14, s2, s14
s_add_u32 s36, s36, 0x2000
s_addc_u32 s15, s15, s45
s_addk_i32 s28, 0x1000
s_and_b32 s44, s7, -8
s_and_b32 s20, s0, 0xc0
s_and_b64 s[68:69], s[10:11], vcc
s_and_saveexec_b64 s[0:1], s[24:25]
s_andn2_b64 vcc, exec, s[24:25]
s_andn2_saveexec_b64 s[0:1], s[10:11]
s_ashr_i32 s18, s7, 31
s_ashr_i64 s[6:7], s[6:7], 2
s_barrier
s_bfe_i32 s5, s58, 0x10007
s_bfe_u32 s44, s17, 0x20006
s_bitcmp0_b32 s9, 7
s_branch 14
s_brev_b32 s0, -2
s_cbranch_execnz 70
s_cbranch_execz 65374
s_cbranch_scc0 173
s_cbranch_scc1 577
s_cbranch_vccnz 723
s_cbranch_vccz 18
s_cmp_eq_u32 s27, s19
s_cmp_eq_u64 s[34:35], 3
s_cmp_ge_i32 s3, s25
s_cmp_ge_u32 s16, s14
s_cmp_gt_i32 s40, 0
s_cmp_gt_u32 s22, 63
s_cmp_le_i32 s0, s37
s_cmp_lg_u32 s18, 1
s_cmp_lg_u64 s[34:35], 0
s_cmp_lt_i32 s51, s46
s_cmp_lt_u32 s22, 64
s_cmpk_eq_i32 s0, 0x800
s_cmpk_gt_i32 s38, 0x80
s_cmpk_gt_u32 s22, 0x80
s_cmpk_lt_i32 s51, 0x80
s_cmpk_lt_u32 s22, 0x80
s_cselect_b32 s24, s19, s18
s_cselect_b32 s0, s0, 0x800
s_cselect_b64 s[8:9], -1, 0
s_endpgm
s_flbit_i32 s4, s19
s_load_dword s27, s[4:5], 0x70
s_load_dwordx16 s[4:19], s[0:1], 0x0
s_load_dwordx2 s[0:1], s[4:5], 0x60
s_load_dwordx4 s[8:11], s[0:1], 0x20
s_load_dwordx8 s[8:15], s[4:5], 0x0
s_lshl1_add_u32 s33, s21, 0
s_lshl2_add_u32 s24, s12, s53
s_lshl3_add_u32 s0, s55, s61
s_lshl4_add_u32 s0, s44, s4
s_lshl_b32 s48, s26, 1
s_lshl_b64 s[0:1], s[38:39], 4
s_lshr_b32 s2, s2, 29
s_lshr_b64 s[4:5], s[16:17], 30
s_min_i32 s23, s4, 8
s_min_u32 s4, s4, 1
s_mov_b32 s41, 0
s_mov_b32 s22, 0x7ffffffe
s_mov_b64 s[30:31], -1
s_mov_b64 s[38:39], 0x1800
s_movk_i32 s48, 0x2000
s_mul_hi_i32 s1, s18, s16
s_mul_hi_u32 s13, s6, s14
s_mul_i32 s6, s46, s9
s_mul_i32 s16, s52, 0x5000
s_nop 8
s_or_b32 s0, s18, 4
s_or_b32 s7, s6, 0x2000
s_or_b64 exec, exec, s[26:27]
s_or_saveexec_b64 s[0:1], s[2:3]
s_orn2_b64 s[10:11], s[0:1], exec
s_setprio 1
s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 8), 0xf8
s_sub_i32 s17, s17, s19
s_sub_u32 s39, s34, s28
s_subb_u32 s24, 0, s29
s_waitcnt lgkmcnt(5)
s_xor_b32 s19, s16, s17
s_xor_b64 s[14:15], exec, s[22:23]
v_accvgpr_mov_b32 a46, a10
v_accvgpr_read_b32 v53, a25
v_accvgpr_write_b32 a6, v60
v_add3_u32 v7, v7, v1, v10
v_add_co_u32_e32 v12, vcc, 0x1000, v10
v_add_f16_e32 v64, 0.15915494, v8
v_add_f32_dpp v18, v20, v18 quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf bound_ctrl:1
v_add_f32_e32 v2, v4, v5
v_add_f32_e32 v9, 0xc0200000, v9
v_add_f32_e64 v64, v8, v9 clamp
v_add_f64 v[64:65], v[8:9], v[10:11] clamp
v_add_lshl_u32 v0, s40, v14, 1
v_add_u32_e32 v0, 0, v0
v_add_u32_e32 v24, 0x800, v28
v_add_u32_sdwa v4, s53, v0 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_0
v_addc_co_u32_e32 v7, vcc, 0, v5, vcc
v_and_b32_e32 v14, 63, v0
v_and_b32_e32 v7, 0x300, v7
v_and_or_b32 v107, s6, 48, v44
v_ashrrev_i32_e32 v27, 31, v26
v_bfe_i32 v78, v0, 3, 1
v_bfe_u32 v125, v0, 5, 1
v_bfi_b32 v44, s10, v44, v112
v_bfrev_b32_e32 v34, 1
v_bitop3_b16 v0, s1, v0, 63 bitop3:0xf8
v_bitop3_b32 v54, v52, s0, v53 bitop3:0x6c
v_ceil_f16_e32 v64, v8
v_ceil_f32_e32 v64, v8
v_ceil_f64_e32 v[64:65], v[8:9]
v_cmp_class_f16_e64 s[40:41], v8, v9
v_cmp_class_f32_e64 s[40:41], v8, v9
v_cmp_class_f64_e64 s[40:41], v[8:9], v10
v_cmp_eq_f16_e64 s[40:41], v8, v9
v_cmp_eq_f32_e64 s[40:41], v8, v9
v_cmp_eq_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_eq_u32_e32 vcc, v2, v26
v_cmp_eq_u32_e64 s[4:5], 1, v47
v_cmp_eq_u64_e32 vcc, s[20:21], v[32:33]
v_cmp_eq_u64_e64 s[14:15], s[20:21], v[34:35]
v_cmp_ge_f16_e64 s[40:41], v8, v9
v_cmp_ge_f32_e64 s[0:1], |v4|, 1.0
v_cmp_ge_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_ge_i32_e32 vcc, s21, v10
v_cmp_ge_i32_e64 s[0:1], v7, v2
v_cmp_ge_i64_e32 vcc, s[4:5], v[6:7]
v_cmp_ge_i64_e64 s[2:3], s[10:11], v[4:5]
v_cmp_ge_u32_e32 vcc, v7, v3
v_cmp_gt_f16_e32 vcc, 0, v13
v_cmp_gt_f16_e64 s[4:5], 0, v20
v_cmp_gt_f32_e32 vcc, 0, v15
v_cmp_gt_f32_e64 s[10:11], 0, v42
v_cmp_gt_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_gt_i32_e32 vcc, s30, v43
v_cmp_gt_i32_e64 s[22:23], s36, v4
v_cmp_gt_i64_e32 vcc, s[14:15], v[6:7]
v_cmp_gt_i64_e64 s[0:1], s[10:11], v[12:13]
v_cmp_gt_u32_e32 vcc, s58, v60
v_cmp_gt_u32_e64 s[2:3], s22, v60
v_cmp_le_f16_e64 s[40:41], v8, v9
v_cmp_le_f32_e64 s[40:41], v8, v9
v_cmp_le_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_le_i32_e32 vcc, s39, v3
v_cmp_le_i32_e64 s[2:3], s39, v0
v_cmp_le_i64_e32 vcc, s[44:45], v[16:17]
v_cmp_le_u32_e32 vcc, s21, v2
v_cmp_lg_f16_e64 s[40:41], v8, v9
v_cmp_lg_f32_e64 s[40:41], v8, v9
v_cmp_lg_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_lt_f16_e64 s[40:41], v8, v9
v_cmp_lt_f32_e64 s[40:41], v8, v9
v_cmp_lt_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_lt_i32_e32 vcc, 4, v1
v_cmp_lt_i32_e64 s[36:37], v16, v68
v_cmp_lt_i64_e32 vcc, s[62:63], v[6:7]
v_cmp_lt_i64_e64 s[0:1], s[36:37], v[0:1]
v_cmp_lt_u32_e32 vcc, s4, v22
v_cmp_lt_u32_e64 s[0:1], s0, v22
v_cmp_lt_u64_e64 s[28:29], s[28:29], 3
v_cmp_ne_u32_e32 vcc, 0, v7
v_cmp_ne_u32_e64 s[0:1], 0, v24
v_cmp_neq_f16_e64 s[40:41], v8, v9
v_cmp_neq_f32_e64 s[40:41], v8, v9
v_cmp_neq_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_nge_f16_e64 s[40:41], v8, v9
v_cmp_nge_f32_e32 vcc, 0, v9
v_cmp_nge_f32_e64 s[40:41], v8, v9
v_cmp_nge_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_ngt_f16_e64 s[40:41], v8, v9
v_cmp_ngt_f32_e32 vcc, s3, v23
v_cmp_ngt_f32_e64 s[6:7], s6, v56
v_cmp_ngt_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_nle_f16_e64 s[40:41], v8, v9
v_cmp_nle_f32_e64 s[40:41], v8, v9
v_cmp_nle_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_nlg_f16_e64 s[40:41], v8, v9
v_cmp_nlg_f32_e64 s[40:41], v8, v9
v_cmp_nlg_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_nlt_f16_e64 s[40:41], v8, v9
v_cmp_nlt_f32_e32 vcc, s6, v6
v_cmp_nlt_f32_e64 s[6:7], s6, v52
v_cmp_nlt_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_o_f16_e64 s[40:41], v8, v9
v_cmp_o_f32_e64 s[40:41], v8, v9
v_cmp_o_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmp_u_f16_e64 s[40:41], v8, v9
v_cmp_u_f32_e64 s[40:41], v8, v9
v_cmp_u_f64_e64 s[40:41], v[8:9], v[10:11]
v_cmpx_eq_f16_e32 vcc, v8, v9
v_cmpx_eq_f32_e32 vcc, v8, v9
v_cmpx_eq_f64_e32 vcc, v[8:9], v[10:11]
v_cmpx_lt_f16_e32 vcc, v8, v9
v_cmpx_lt_f32_e32 vcc, v8, v9
v_cmpx_lt_f64_e32 vcc, v[8:9], v[10:11]
v_cmpx_nlt_f16_e32 vcc, v8, v9
v_cmpx_nlt_f32_e32 vcc, v8, v9
v_cmpx_nlt_f64_e32 vcc, v[8:9], v[10:11]
v_cmpx_u_f16_e32 vcc, v8, v9
v_cmpx_u_f32_e32 vcc, v8, v9
v_cmpx_u_f64_e32 vcc, v[8:9], v[10:11]
v_cndmask_b32_e32 v38, v25, v38, vcc
v_cndmask_b32_e64 v16, v9, v1, s[20:21]
v_cos_f16_e32 v64, v8
v_cos_f32_e32 v64, v8
v_cvt_f16_f32_e32 v36, v36
v_cvt_f16_f32_sdwa v3, v3 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD
v_cvt_f32_f16_e32 v41, v41
v_cvt_f32_f16_sdwa v5, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1
v_cvt_f32_i32_e32 v2, s16
v_cvt_f32_u32_e32 v1, s4
v_cvt_f32_ubyte0_e32 v1, s10
v_cvt_i32_f32_e32 v55, v56
v_cvt_pk_bf16_f32 v2, v2, v3
v_cvt_pk_f16_f32 v1, v2, v3
v_cvt_u32_f32_e32 v2, v2
v_div_fixup_f16 v64, v8, v9, v10
v_div_fixup_f32 v11, v1, v38, v11
v_div_fixup_f64 v[64:65], v[100:101], v[10:11], v[8:9]
v_div_fmas_f32 v44, v44, v49, v48
v_div_fmas_f64 v[100:101], v[100:101], v[102:103], v[106:107]
v_div_scale_f32 v7, vcc, 1.0, v1, 1.0
v_div_scale_f64 v[104:105], vcc, v[8:9], v[10:11], v[8:9]
v_exp_f16_e32 v64, v8
v_exp_f32_e32 v53, v53
v_floor_f16_e32 v64, v8
v_floor_f32_e32 v64, v8
v_floor_f64_e32 v[64:65], v[8:9]
v_fma_f16 v10, v8, v9, v10 op_sel:[1,0,1,1]
v_fma_f32 v1, -v34, v16, v1
v_fma_f64 v[102:103], v[102:103], v[104:105], v[102:103]
v_fma_mix_f32 v66, v26, v22, 0 op_sel_hi:[1,0,0]
v_fma_mixhi_f16 v11, v8, v9, v10 op_sel_hi:[1,0,0]
v_fma_mixlo_f16 v2, v2, v3, 0
v_fmaak_f32 v45, v44, v45, 0xbec09330
v_fmac_f32_e32 v47, v51, v50
v_fmac_f32_e32 v102, 0xba1345e1, v101
v_fmac_f64_e32 v[12:13], v[8:9], v[10:11]
v_fmamk_f32 v81, v79, 0xb2a5705f, v81
v_fract_f16_e32 v64, v8
v_fract_f32_e32 v64, v8
v_fract_f64_e32 v[64:65], v[8:9]
v_frexp_exp_i16_f16_e32 v64, v8
v_frexp_exp_i32_f32_e32 v64, v8
v_frexp_exp_i32_f64_e32 v64, v[8:9]
v_frexp_mant_f16_e32 v64, v8
v_frexp_mant_f32_e32 v64, v8
v_frexp_mant_f64_e32 v[64:65], v[8:9]
v_ldexp_f16_e32 v64, v8, v9
v_ldexp_f32 v58, v58, v59
v_ldexp_f64 v[64:65], v[8:9], v10
v_log_f16_e32 v64, v8
v_log_f32_e32 v64, v8
v_lshl_add_u32 v20, v7, 3, s3
v_lshl_add_u64 v[26:27], s[2:3], 0, v[28:29]
v_lshl_or_b32 v76, s39, 6, v81
v_lshlrev_b32_e32 v0, 1, v18
v_lshlrev_b64 v[48:49], 1, v[2:3]
v_lshrrev_b32_e32 v80, 5, v78
v_lshrrev_b64 v[2:3], v43, s[8:9]
v_mad_i64_i32 v[6:7], s[0:1], s31, v6, v[10:11]
v_mad_u64_u32 v[2:3], s[12:13], v6, s4, 0
v_max3_f16 v64, v8, v9, v10
v_max3_f32 v16, v16, v19, v17
v_max_f16_e32 v64, v8, v9
v_max_f32_e32 v0, v0, v0
v_max_f32_e32 v6, 0xff800000, v6
v_max_f32_e64 v26, |v20|, |v20|
v_max_f64 v[64:65], v[8:9], v[10:11]
v_max_i32_e32 v6, v0, v6
v_maximum3_f32 v64, v8, v9, v10
v_mbcnt_hi_u32_b32 v4, -1, v4
v_mbcnt_lo_u32_b32 v19, -1, 0
v_med3_f16 v64, v8, v9, v10
v_med3_f32 v64, v8, v9, v10
v_mfma_f32_16x16x16_bf16 v[8:11], v[48:49], v[40:41], v[8:11]
v_mfma_f32_16x16x16_f16 v[20:23], v[102:103], v[38:39], v[20:23]
v_mfma_f32_16x16x32_bf16 v[0:3], a[20:23], v[78:81], v[0:3]
v_mfma_f32_16x16x32_f16 v[16:19], a[16:19], v[104:107], v[16:19]
v_mfma_f32_16x16x4_f32 v[0:3], v25, v26, v[0:3]
v_mfma_f32_32x32x16_bf16 v[2:17], v[18:21], v[22:25], v[2:17]
v_mfma_f32_32x32x16_f16 v[34:49], v[70:73], v[78:81], v[34:49]
v_min3_f16 v64, v8, v9, v10
v_min3_f32 v64, v8, v9, v10
v_min_f16_e32 v64, v8, v9
v_min_f32_e32 v8, 4.0, v8
v_min_f32_e32 v22, 0x41a00000, v18
v_min_f64 v[64:65], v[8:9], v[10:11]
v_min_i32_e32 v3, 4, v3
v_minimum3_f32 v64, v8, v9, v10
v_mov_b32_dpp v27, v1 row_half_mirror row_mask:0xf bank_mask:0xf bound_ctrl:1
v_mov_b32_e32 v23, v22
v_mov_b32_e32 v52, 0x42800000
v_mov_b64_e32 v[4:5], s[28:29]
v_mov_b64_e32 v[4:5], 0x100
v_mul_f16_e32 v64, v8, v9
v_mul_f16_e64 v64, v8, v9 clamp
v_mul_f32_e32 v16, v13, v12
v_mul_f32_e32 v119, 0x3f3504f3, v51
v_mul_f32_e64 v37, v21, -v22
v_mul_f64 v[64:65], v[8:9], s[44:45]
v_mul_hi_u32 v2, v1, v2
v_mul_legacy_f32 v64, v8, v9
v_mul_lo_u32 v1, v5, s10
v_not_b32_e32 v1, 63
v_or3_b32 v16, v2, s10, 16
v_or_b32_e32 v2, 8, v1
v_or_b32_e32 v7, 0x100, v2
v_or_b32_sdwa v19, v18, v24 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:WORD_0
v_perm_b32 v54, v55, v54, s53
v_permlane16_swap_b32_e32 v6, v10
v_permlane32_swap_b32_e32 v0, v4
v_pk_add_f32 v[26:27], v[26:27], v[28:29]
v_pk_fma_f32 v[10:11], v[10:11], v[18:19], v[20:21]
v_pk_mov_b32 v[34:35], v[28:29], v[20:21] op_sel:[1,0]
v_pk_mul_f32 v[38:39], v[24:25], s[2:3] op_sel_hi:[1,0]
v_rcp_f16_e32 v64, v8
v_rcp_f32_e32 v48, v45
v_rcp_f64_e32 v[102:103], v[100:101]
v_rcp_iflag_f32_e32 v64, v8
v_readfirstlane_b32 s22, v1
v_readlane_b32 s73, v41, 63
v_rndne_f16_e32 v64, v8
v_rndne_f32_e32 v66, v64
v_rndne_f64_e32 v[64:65], v[8:9]
v_rsq_f16_e32 v64, v8
v_rsq_f32_e32 v51, v45
v_rsq_f64_e32 v[64:65], v[8:9]
v_sin_f16_e32 v64, v8
v_sin_f32_e32 v64, v8
v_sqrt_f16_e32 v64, v8
v_sqrt_f32_e32 v64, v8
v_sqrt_f64_e32 v[64:65], v[8:9]
v_sub_f16_e32 v64, v8, v9
v_sub_f32_e32 v48, v48, v57
v_sub_u32_e32 v4, v0, v25
v_sub_u32_e32 v175, 0xffffffc0, v68
v_subrev_f16_e32 v64, v8, v9
v_subrev_f32_e32 v11, s52, v11
v_subrev_u32_e32 v11, s16, v11
v_trunc_f16_e32 v64, v8
v_trunc_f32_e32 v4, v4
v_trunc_f64_e32 v[64:65], v[8:9]
v_xad_u32 v30, v20, v21, s0
v_xor_b32_e32 v58, 32, v57
v_xor_b32_e32 v15, 0x80, v4
v_xor_b32_sdwa v59, v37, s3 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD
